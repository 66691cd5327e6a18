"""A whole layer as a user calls it, beside the peers' layers of the same sizes.

Weights of peers' layers are other numbers in other shapes, so only times are compared; ours are
held against the float64 eager form of the same spec with the same weights.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from archc.backends.eager.emit import class_name
from archc.backends.measured import take
from archc.backends.renamed import entering
from archc.bench.clock import Call, Clock, ceilings, paired
from archc.bench.contenders import Unavailable, refusals, told
from archc.bench.drawn import DTYPES, load_file
from archc.bench.errors import LIMITS, error, few
from archc.bench.job import COMPILED, EAGER, LAYER, LAYER_BACKWARD, OURS, Job, Work
from archc.bench.subject import (
    WIDTHS,
    Request,
    inputs_of,
    label_of,
    sizes_at,
    title_and_layer,
)  # fmt: skip
from archc.compile import text_of
from archc.dims import TIME
from archc.ir.count import weight_products
from archc.ir.sizes import evaluate

Note = Callable[[dict[str, Any]], None]
Run = Callable[[Mapping[str, Tensor]], Tensor]
"""A layer's inputs -> its first output."""

Calls = Callable[[str], dict[str, Call]]
"""The name of a contender -> what is timed of it."""


def whole(spec: str, shape: tuple[int, int, int, int], asked: Request, folder: Path) -> Job:
    """Write what a process needs to measure a whole layer into `folder`, and the job. Its least
    work is that of the products with weights. Raises as `subject` does."""
    title, layer = title_and_layer(spec, asked)
    folder.mkdir(parents=True, exist_ok=True)
    for name, backend in (("ours", "triton"), ("eager", "eager")):
        (folder / f"{name}.py").write_text(text_of(layer, backend), encoding="utf-8")
    sizes = sizes_at(layer, shape, asked.given)
    inputs = tuple(inputs_of(layer, sizes))
    known = {**sizes, str(TIME.size): shape[1]}
    flops = weight_products(layer)
    known |= {str(s): shape[1] for s in flops.free_symbols if str(s) not in known}
    once = shape[0] * float(evaluate(flops, known))
    moved = 2.0 * WIDTHS[asked.dtype] * shape[0] * shape[1] * float(sizes.get("d", 0))
    work = {LAYER: Work(moved, once), LAYER_BACKWARD: Work(3 * moved, 3 * once)}
    return Job(
        spec, title, class_name(layer), "", str(folder), shape, sizes, inputs, (), (), (),
        (LAYER, LAYER_BACKWARD), (), asked.against, asked.peers, asked.device, asked.dtype,
        asked.seconds, work, label_of(title, asked),
    )  # fmt: skip


def drawn(job: Job, batch: int, tokens: int, dtype: torch.dtype) -> dict[str, Tensor]:
    """Normal numbers for the layer's inputs, the same for the same job and lengths."""
    generator = torch.Generator(job.device).manual_seed(0)
    lengths = {"B": batch, "T": tokens}
    made = {}
    for each in job.inputs:
        shape = [lengths[axis] if isinstance(axis, str) else axis for axis in each.axes]
        numbers = torch.randn(shape, generator=generator, device=job.device)
        made[each.name] = numbers.to(dtype)
    return made


def module_of(job: Job, file: str, dtype: torch.dtype) -> nn.Module:
    """The layer in one of the job's files, with the weights that the spec draws."""
    loaded = load_file(Path(job.folder) / f"{file}.py", f"archc_bench_{file}")
    take(loaded)
    torch.manual_seed(0)
    return getattr(loaded, job.layer)(**job.sizes, device=job.device, dtype=dtype)


def contender(name: str, job: Job) -> nn.Module:
    """A layer to be timed. Raises Unavailable for a peer without one, and errors of the peers'
    file."""
    dtype = DTYPES[job.dtype]
    if name in (OURS, EAGER):
        return module_of(job, name, dtype)
    if name == COMPILED:
        made = torch.compile(module_of(job, EAGER, dtype))
        assert isinstance(made, nn.Module)
        return made
    if job.peers is None:
        raise Unavailable("no file of peers was given: --peers FILE")
    table = getattr(load_file(Path(job.peers), "archc_bench_peers"), "LAYERS", {})
    if job.title not in table.get(name, {}):
        raise Unavailable(f"has no layer for {job.title}")
    return table[name][job.title](job.sizes).to(job.device, dtype)


def run_of(module: nn.Module, names: bool) -> Run:
    """How a layer is called: ours by the names of its inputs, a peer's with the first of them."""

    def run(inputs: Mapping[str, Tensor]) -> Tensor:
        made = module(**entering(inputs)) if names else module(next(iter(inputs.values())))
        return made[0] if isinstance(made, tuple) else made

    return run


def calls_of(run: Run, module: nn.Module, inputs: Mapping[str, Tensor], what: str) -> Call:
    """The calls that are timed: a forward, or a forward and all gradients."""
    if what == LAYER:

        def forward() -> object:
            with torch.no_grad():
                return run(inputs)

        return forward
    leaves = {name: x.clone().requires_grad_() for name, x in inputs.items()}
    with torch.no_grad():
        slope = torch.randn_like(run(inputs))

    def both() -> None:
        for leaf in (*leaves.values(), *module.parameters()):
            leaf.grad = None
        run(leaves).backward(slope)

    return both


def whole_calls(job: Job, tokens: int) -> Calls:
    """By contender, what is timed of a whole layer with so many tokens."""
    inputs = drawn(job, job.shape[0], tokens, DTYPES[job.dtype])

    def make(name: str) -> dict[str, Call]:
        module = contender(name, job)
        run = run_of(module, name in (OURS, EAGER, COMPILED))
        whats = (LAYER, LAYER_BACKWARD)
        return {what: lambda what=what: calls_of(run, module, inputs, what)() for what in whats}

    return make


Errors = Mapping[str, Mapping[str, float]]
"""How far values are from float64, by what is timed and by name."""

LEAST = 32
"""Tokens of which errors are taken whatever room there is."""


def errors_of_ours(job: Job) -> tuple[int, Errors, Errors]:
    """How far our layer's output and the gradient of each input are from float64, at one sequence
    of few tokens, and how far those of PyTorch are in the same dtype; how many tokens. Half as
    many, and half of these, where float64 in PyTorch has no room."""
    tokens = few(job.shape[1])
    while True:
        try:
            return tokens, *_errors_at(job, tokens)
        except torch.OutOfMemoryError:
            if tokens < LEAST:
                raise
        torch.cuda.empty_cache()
        tokens //= 2


def _errors_at(job: Job, tokens: int) -> tuple[Errors, Errors]:
    """The errors of ours, and of PyTorch in the same dtype with the same weights and inputs."""
    dtype = DTYPES[job.dtype]
    ours, eager, exact = (
        module_of(job, name, kind)
        for name, kind in ((OURS, dtype), (EAGER, dtype), (EAGER, torch.float64))
    )
    eager.load_state_dict(ours.state_dict())
    exact.load_state_dict({name: x.double() for name, x in ours.state_dict().items()})
    given, found = drawn(job, 1, tokens, dtype), list[list[Tensor]]()
    slope: Tensor | None = None
    for module, to in ((exact, torch.float64), (ours, dtype), (eager, dtype)):
        leaves = {name: x.to(to, copy=True).requires_grad_() for name, x in given.items()}
        made = run_of(module, True)(leaves)
        slope = torch.randn_like(made).to(dtype) if slope is None else slope
        found.append([made.detach(), *torch.autograd.grad(made, [*leaves.values()], slope.to(to))])
    wanted, *others = found
    errors = []
    for each in others:
        value, *gradients = [error(x, right) for x, right in zip(each, wanted, strict=True)]
        slopes = {f"d {at.name}": off for at, off in zip(job.inputs, gradients, strict=True)}
        errors.append({LAYER: {"y": value}, LAYER_BACKWARD: slopes})
    return errors[0], errors[1]


def _note_errors(job: Job, note: Note) -> None:
    """Rows of the errors of ours. Where PyTorch in the same dtype is further off than the limit, as
    where a choice flips or a maximum has a kink, twice that is the limit, and a remark says so."""
    values, gradients, _ = (2 * each for each in LIMITS[job.dtype])  # products round, too
    tokens, errors, yardstick = errors_of_ours(job)
    if tokens < few(job.shape[1]):
        note({"remark": f"errors are of {tokens} tokens, as float64 has no room for more"})
    for what, found in errors.items():
        limits = dict.fromkeys(found, values if what == LAYER else gradients)
        for name, off in yardstick[what].items():
            if 2 * off > limits[name]:
                limits[name] = 2 * off
                told = f"{name} may be off by {2 * off:.1e}, twice what PyTorch is in {job.dtype}"
                note({"remark": told})
        note({"errors": found, "limits": limits, "what": what, "contender": OURS})


def measure_whole(job: Job, note: Note, machine: dict[str, str]) -> None:
    """The rows of a job of a whole layer: peaks and paired times of all, then errors of ours."""
    clock = Clock(job.device)
    seen = ceilings(clock, DTYPES[job.dtype])
    note({"ceilings": {"bytes": seen.bytes, "flops": seen.flops}, "machine": machine})
    modules: dict[str, nn.Module] = {}
    for name in (OURS, *job.against):
        try:
            modules[name] = contender(name, job)
        except refusals() as reason:
            note({"remark": f"{name} {told(reason)}"})
    inputs = drawn(job, *job.shape[:2], DTYPES[job.dtype])
    for what in (LAYER, LAYER_BACKWARD):
        calls = _ready(what, modules, inputs, clock, note)
        if calls:
            note({"what": what, "seconds": paired(calls, clock, job.seconds)})
    del modules, inputs
    _note_errors(job, note)


def _ready(
    what: str, modules: Mapping[str, nn.Module], inputs: Mapping[str, Tensor], clock: Clock,
    note: Note,
) -> dict[str, Call]:  # fmt: skip
    """The calls that can be timed, each made twice before; rows of peaks and of refusals go to
    `note`. Gradients of one are gone before the next is called."""
    calls: dict[str, Call] = {}
    for name, module in modules.items():
        try:
            run = run_of(module, name in (OURS, EAGER, COMPILED))
            call = calls_of(run, module, inputs, what)
            call()
            clock.wait()
            module.zero_grad(set_to_none=True)
            note({"peak_mib": clock.peak(call), "what": what, "contender": name})
            calls[name] = call
        except refusals() as reason:
            note({"refused": name, "what": what, "reason": told(reason)})
        module.zero_grad(set_to_none=True)
    return calls
