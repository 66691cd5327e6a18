"""One drawn program through every gate: text of every backend, and numbers of every form.

The numbers of a program are those of `meaning.py`, which knows nothing of archc. The oracle of
archc and the eager file are held against them: the whole sequence, pieces of it, packed sequences,
and the gradients of everything.
"""

from __future__ import annotations

import signal
import time
import traceback
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from types import FrameType, TracebackType
from typing import Any

import torch
from archc.backends.eager.emit import emit
from torch import Tensor

import archc
from archc.compile import elaborated, lowered, text_of
from archc.diagnostics import ArchError
from archc.file_check import checked as self_checked
from archc.ir.layer import Layer
from archc.ir.meaning import evaluate
from archc.ir.plan import Plan
from archc.ir.text import as_text
from archc.ir.verify import verify
from archc.origin import origin_of
from archc.source import Source
from archc.syntax.format import format_source
from tests.programs import meaning
from tests.programs.terms import Declared, Program, mentions

TOKENS = 18
"""Enough for the chunked form, which fewer tokens than 16 do not take."""
PIECES = (5, 1, 0, 1, 9, 2)
BORDERS = (0, 4, 4, 5, TOKENS)
LIMIT, GRADIENT_LIMIT = 1e-8, 1e-6
LARGEST = 1e7
"""Numbers above this say more of the program than of its compiler."""
WAVE = Declared("wave", ())
SECONDS = 60
"""Processor time that one program may take."""


class Wrong(Exception):
    """Two numbers that should be one."""


class TooSlow(BaseException):
    """A program that took longer than it may."""


@dataclass
class Caught:
    """A context in which whatever is raised is kept: any exception here is a finding."""

    error: BaseException | None = None

    def __enter__(self) -> Caught:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:  # fmt: skip
        self.error = error
        return isinstance(error, Exception | TooSlow)


@dataclass
class Outcome:
    """What became of a program: "ok", "refused" with codes, or "failed" at a gate with why."""

    seed: int
    status: str = "ok"
    gate: str = ""
    why: str = ""
    text: str = ""
    trace: str = ""
    numbers: str = ""
    seconds: float = 0.0
    gates: dict[str, float] = field(default_factory=dict)

    @property
    def sort(self) -> tuple[str, str]:
        """What makes two failures the same."""
        return self.gate, self.why.split("\n")[0] if self.status == "refused" else self.place()

    def place(self) -> str:
        """The kind of an error and the last function of archc in its trace."""
        kind = self.why.partition(":")[0]
        frames = [
            line.strip()
            for line in self.trace.split("\n")
            if "/archc/" in line or "/backends/" in line
        ]
        return f"{kind} {frames[-1].rpartition(', in ')[2]}" if frames else kind


def attempt(
    program: Program, numbers: bool, check: bool = False, seconds: int = SECONDS
) -> Outcome:
    """A program through the gates: texts always, numbers and the self-check of a file if asked."""
    outcome = Outcome(program.seed)
    start = time.process_time()
    with Caught() as caught, limited(seconds), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _gates(program, numbers, check, outcome)
    outcome.seconds = round(time.process_time() - start, 2)
    error = caught.error
    if isinstance(error, ArchError):
        outcome.status = "refused"
        outcome.why = " ".join(sorted({d.code for d in error.diagnostics})) + "\n" + str(error)
    elif error is not None:
        outcome.status, outcome.why = "failed", f"{type(error).__name__}: {error}"
        outcome.text = program.text()
        outcome.trace = "".join(traceback.format_exception(error))[-6000:]
    return outcome


class limited:
    """A context that a program may be in for so many seconds of processor time."""

    def __init__(self, seconds: int):
        self.seconds = seconds

    def __enter__(self) -> None:
        self.before = signal.signal(signal.SIGPROF, self.stop)
        signal.setitimer(signal.ITIMER_PROF, self.seconds)

    def __exit__(self, *_: object) -> None:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, self.before)

    def stop(self, number: int, frame: FrameType | None) -> None:
        raise TooSlow(f"more than {self.seconds} s")


def _gates(program: Program, numbers: bool, check: bool, outcome: Outcome) -> None:
    """The gates one after the other; `outcome` notes where it is."""

    def gate(name: str, run: Callable[[], Any]) -> Any:
        start = time.process_time()
        outcome.gate = name
        made = run()
        outcome.gates[name] = round(time.process_time() - start, 3)
        return made

    text = program.text()
    spec = gate("elaborate", lambda: archc.parse(text))
    gate("verify", lambda: verify(spec.layer))
    gate("format", lambda: formatted(text))
    gate("imports", lambda: imported(program, spec.layer))
    gate("classify", spec.classify)
    gate("eager", lambda: compile(text_of(spec.layer, "eager"), "eager", "exec"))
    gate("triton", lambda: compile(text_of(spec.layer, "triton"), "triton", "exec"))
    if check:
        gate("check", lambda: checked(spec.layer))
    if numbers:
        Numbers(program, spec, gate, outcome).run()
    outcome.gate = ""


def formatted(text: str) -> None:
    """Both spellings parse to the same, and stay as they are."""
    written = format_source(Source("program.arch", text))
    if format_source(Source("program.arch", written)) != written:
        raise Wrong("a formatted text is formatted differently")
    greek = format_source(Source("program.arch", written), unicode=True)
    if format_source(Source("program.arch", greek)) != written:
        raise Wrong("the two spellings differ")


def imported(program: Program, layer: Layer) -> None:
    """A spec in two files is the spec in one: its last layer imports what it mentions."""
    *others, main = program.decls
    names = [name for decl in others for name in decl.declares if mentions(main.text(), name)]
    if not names:
        return
    rest = Source("rest.arch", "\n".join(decl.text() for decl in others))
    text = f'import {", ".join(names)} from "{rest.name}"\n\n{main.text()}'
    found = elaborated(Source("program.arch", text), importer=lambda name, source: rest)
    if as_text(found, spans=False) != as_text(layer, spans=False):
        raise Wrong("a spec in two files is another layer than in one")


def checked(layer: Layer) -> None:
    """The file with its self-check, as `archc compile` writes it."""
    compile(self_checked(Plan(lowered(layer)), layer, emit), "checked", "exec")


# --- numbers --------------------------------------------------------------------------------------


def drawn(declared: Declared, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Numbers within what was declared."""
    noise = torch.rand(shape, generator=generator, dtype=torch.float64)
    if declared.whole:
        return (noise * (declared.high + 1)).long()
    return declared.low + (declared.high - declared.low) * noise


def slopes(
    made: Mapping[str, Tensor], waves: Mapping[str, Tensor], values: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """The gradients of a sum of outputs, each element with a weight of its own."""
    total = sum((made[name] * wave).sum() for name, wave in waves.items())
    found = torch.autograd.grad(total, [*values.values()], allow_unused=True)
    pairs = zip(values.items(), found, strict=True)
    return {name: torch.zeros_like(x) if g is None else g for (name, x), g in pairs}


@dataclass
class Numbers:
    """The forms of a program on one instance."""

    program: Program
    spec: archc.Spec
    gate: Callable[[str, Callable[[], Any]], Any]
    outcome: Outcome

    def run(self) -> None:
        program = self.program
        self.generator = torch.Generator().manual_seed(program.seed)
        given = {"dtype": torch.float64, "backend": "eager", **program.given}
        self.module = self.gate("module", lambda: self.spec.module(**given))
        self.fill()
        inputs = self.inputs(2, TOKENS)
        with torch.no_grad():
            wanted = self.gate("meaning", lambda: self.meant(inputs))
        finite = all(
            y.isfinite().all() and y.abs().max() < LARGEST for y in wanted.values() if y.numel()
        )
        if not finite:
            self.outcome.numbers = "not finite"
            return
        try:
            self.gate("oracle", lambda: self.oracle(inputs, wanted))
        except Wrong:
            if not self.jumps(inputs, wanted):
                raise
            self.outcome.numbers = "a step where rounding decides"
            return
        with torch.no_grad():
            self.gate("whole", lambda: self.whole(inputs, wanted))
            if program.causal:
                self.gate("pieces", lambda: self.pieces(inputs, wanted))
            self.gate("left out", lambda: self.left_out(inputs, wanted))
            self.gate("packed", self.packed)
            self.gate("short", self.short)
        self.gate("gradients", lambda: self.gradients(inputs))
        self.outcome.numbers = "right"

    def jumps(self, inputs: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> bool:
        """Whether a program has other numbers for inputs that differ by a rounding: a sum that is 0
        but for rounding enters a `floor` or `sign`."""
        near = {n: x * (1 + 1e-13) if x.is_floating_point() else x for n, x in inputs.items()}
        with torch.no_grad():
            other = self.meant(near)
        pairs = ((other[n].double(), y.double()) for n, y in wanted.items() if y.numel())
        return any(float((x - y).abs().max()) > LIMIT * 1e3 for x, y in pairs)

    def fill(self) -> None:
        """Parameters within what their initial values suggest."""
        declared = {each.name: each for decl in self.program.decls for each in decl.params}
        with torch.no_grad():
            for path, parameter in self.module.named_parameters():
                own = path.rpartition(".")[2]  # a layer with a name has it before its parameters
                each = declared.get(own) or declared[own.partition("_")[2]]
                parameter.copy_(drawn(each, tuple(parameter.shape), self.generator))
        self.module.eval()

    def inputs(self, batch: int, tokens: int) -> dict[str, Tensor]:
        found = {}
        for each in self.program.main.inputs:
            count = tokens if each.along == "t" else 5
            dims = () if each.whole else each.dims
            shape = (batch, count, *(self.program.sizes[dim] for dim in dims))
            found[each.name] = drawn(each, shape, self.generator)
        return found

    def meant(
        self, inputs: Mapping[str, Tensor], weights: Mapping[str, Tensor] | None = None
    ) -> dict:
        return meaning.outputs(self.program, inputs, weights or self.module.state_dict())

    def made(self, *args: Any, **more: Any) -> dict[str, Tensor]:
        """The module's outputs by name."""
        made = self.module(*args, **more)
        names = [name for name, _ in meaning.outputs_of(self.program.main)]
        return dict(zip(names, made if isinstance(made, tuple) else (made,), strict=True))

    def oracle(self, inputs: dict[str, Tensor], wanted: Mapping[str, Tensor]) -> None:
        origin = origin_of(self.module)
        with torch.no_grad():
            weights = self.module.state_dict()
            found = evaluate(origin.layer, inputs, weights, origin.sizes).outputs
        self.same("the oracle", found, wanted)

    def whole(self, inputs: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> None:
        self.same("the whole sequence", self.made(**inputs), wanted)

    def left_out(self, inputs: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> None:
        """Without what may be left out, the last output, which needs it, is not made."""
        optional = [each.name for each in self.program.main.inputs if each.optional]
        if not optional:
            return
        made = self.module(**{n: x for n, x in inputs.items() if n not in optional})
        names = [name for name, _ in meaning.outputs_of(self.program.main)][:-1]
        found = dict(zip(names, made if isinstance(made, tuple) else (made,), strict=True))
        self.same("left out", found, {name: wanted[name] for name in names})

    def pieces(self, inputs: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> None:
        """A prompt, then what follows."""
        own = [each.name for each in self.program.main.inputs if each.along == "t"]
        parts: dict[str, list[Tensor]] = {}
        state, start = None, 0
        for count in PIECES:
            now = {name: inputs[name][:, start : start + count] for name in own}
            if state is None:
                now |= {name: x for name, x in inputs.items() if name not in own}
            made, state = self.module(**now, state=state, return_state=True)
            names = [name for name, _ in meaning.outputs_of(self.program.main)]
            made = made if isinstance(made, tuple) else (made,)
            for name, y in zip(names, made, strict=True):
                parts.setdefault(name, []).append(y)
            start += count
        along = {name: y for name, y in wanted.items() if y.dim() > 1}
        self.same("pieces", {name: torch.cat(parts[name], 1) for name in along}, along)

    def packed(self) -> None:
        """Sequences one after the other, each as if by itself."""
        if any(each.along != "t" for each in self.program.main.inputs):
            return
        inputs = self.inputs(1, TOKENS)
        if any(y.dim() < 2 for y in self.meant(inputs).values()):
            with Caught() as caught:
                self.made(**inputs, cu_seqlens=torch.tensor(BORDERS))
            if "made from all tokens together" not in str(caught.error):
                raise Wrong(f"packed sequences have no such output: {caught.error}")
            return
        made = self.made(**inputs, cu_seqlens=torch.tensor(BORDERS))
        for first, last in pairwise(BORDERS):
            if first == last:
                continue
            each = {name: x[:, first:last] for name, x in inputs.items()}
            wanted = {n: y for n, y in self.meant(each).items() if y.dim() > 1}
            found = {n: made[n][:, first:last] for n in wanted}
            self.same(f"packed {first}:{last}", found, wanted)

    def short(self) -> None:
        """One token, and none."""
        inputs = self.inputs(2, 1)
        self.same("one token", self.made(**inputs), self.meant(inputs))
        empty = {n: x[:, :0] if self.along(n) else x for n, x in inputs.items()}
        for name, y in self.made(**empty).items():
            if y.dim() > 1 and y.shape[1] != 0:
                raise Wrong(f"no tokens: `{name}` is {list(y.shape)}")

    def along(self, name: str) -> bool:
        return next(each.along == "t" for each in self.program.main.inputs if each.name == name)

    def gradients(self, inputs: dict[str, Tensor]) -> None:
        """Of inputs and parameters, for a sum of all outputs."""
        inputs = {n: x.clone().requires_grad_(x.is_floating_point()) for n, x in inputs.items()}
        weights = {
            n: p.detach().clone().requires_grad_() for n, p in self.module.named_parameters()
        }
        made, wanted = self.made(**inputs), self.meant(inputs, weights)
        real = [n for n, y in wanted.items() if y.is_floating_point() and y.requires_grad]
        if not real:
            return
        waves = {n: drawn(WAVE, tuple(wanted[n].shape), self.generator) for n in real}
        enter = {n: x for n, x in inputs.items() if x.requires_grad}
        ours = slopes(made, waves, {**enter, **dict(self.module.named_parameters())})
        theirs = slopes(wanted, waves, {**enter, **weights})
        if any(not g.isfinite().all() or (g.abs() > LARGEST).any() for g in theirs.values()):
            self.outcome.numbers = "gradients not finite"
            return
        largest = max((float(g.abs().max()) for g in theirs.values() if g.numel()), default=0.0)
        for name, g in theirs.items():
            error = float((ours[name] - g).abs().max()) if g.numel() else 0.0
            if not error <= GRADIENT_LIMIT * max(largest, 1e-3):
                raise Wrong(f"the gradient of `{name}`: {error:.1e} of {largest:.1e}")

    @staticmethod
    def same(form: str, found: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> None:
        """Refuse numbers that are not those wanted."""
        for name, y in wanted.items():
            x = found[name].detach()
            if x.shape != y.shape:
                raise Wrong(f"{form}: `{name}` is {list(x.shape)}, not {list(y.shape)}")
            if not y.numel():
                continue
            error = float((x.double() - y.double()).abs().max())
            largest = float(y.double().abs().max())
            if not error <= LIMIT * max(largest, 1e-3):
                raise Wrong(f"{form}: `{name}` is {error:.1e} off, of {largest:.1e}")
