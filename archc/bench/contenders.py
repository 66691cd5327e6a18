"""Contenders: the generated file, its PyTorch alone, and the peers of a file of peers.

A file of peers is a Python file with a table `PEERS[name][spec]` of `Peer`s, where spec is the name
of a spec, or `*` for any. It may also have `LAYERS[name][spec]`, functions from the sizes of a spec
to a peer's whole layer, an nn.Module; `TOKENS[name]`, functions from such a layer and tokens to
what takes the one after these; `SHAPES[spec]`, the batch, tokens, heads and dim at which a
spec is compared on a GPU; `ROWS`, the table that `--all` measures; `PACKAGES`, the distributions
whose versions are noted; `MODULES[name]`, what may be imported ahead. Peers are imported when they
are called: one that is missing is reported as that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from inspect import signature
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from archc.backends.measured import take
from archc.backends.renamed import entering
from archc.backends.writer import identifier
from archc.bench.drawn import load_file
from archc.bench.job import BACKWARD, COMPILED, EAGER, FORWARD, LAYER, OURS, TOKEN, Job

Inputs = Mapping[str, Tensor]
Made = tuple[tuple[Tensor, ...], tuple[Tensor, ...]]
"""Outputs, and states to continue from."""


@dataclass(frozen=True)
class Peer:
    """How a peer is called for a spec.

    `sequence(inputs, final)` and `step(inputs, states)` return outputs and states, each a tuple;
    without `final` no states are wanted; a `sequence` that takes `borders` is given those of packed
    sequences. What `same` denies is no other form of the spec but something to compare times with:
    its numbers are not held against the oracle. `note` is shown.
    """

    sequence: Callable[..., Made] | None = None
    step: Callable[[Inputs, Sequence[Tensor]], Made] | None = None
    same: bool = True
    note: str = ""


@dataclass(frozen=True)
class Row:
    """A row of the table that `--all` measures.

    A spec, by its name or, of a name of its own, as `text`; its shape, if it is not the usual one;
    what is timed of it; values of its own arguments; `beside`: peers that it is timed with whoever
    is named; whether its memory is `fused`, and `packed` of so many sequences.
    """

    spec: str
    shape: tuple[int, int, int, int] | None = None
    what: tuple[str, ...] = (FORWARD, BACKWARD)
    given: Mapping[str, Any] = field(default_factory=dict)
    beside: tuple[str, ...] = ()
    text: str = ""
    fused: bool = False
    packed: int = 0
    batches: tuple[int, ...] | None = None

    @property
    def title(self) -> str:
        """The name that peers have it under."""
        return f"{self.spec} fused" if self.fused else self.spec

    @property
    def whole(self) -> bool:
        """Whether it is of a whole layer, not of the memory of one."""
        return LAYER in self.what or TOKEN in self.what

    @property
    def elsewhere(self) -> bool:
        """Whether it is of a memory at another shape than the usual one."""
        return not self.whole and self.shape is not None


class Unavailable(RuntimeError):
    """A contender that has no form of what is asked for."""


def refusals() -> tuple[type[Exception], ...]:
    """Exceptions that foreign code may end with: they are reported, and nothing else stops."""
    found: list[type[Exception]] = [
        ArithmeticError, AssertionError, AttributeError, ImportError, LookupError, NameError,
        OSError, RuntimeError, SyntaxError, TypeError, ValueError,
    ]  # fmt: skip
    try:
        from triton.errors import TritonError
    except ImportError:
        return tuple(found)
    return (*found, TritonError)


def told(reason: BaseException) -> str:
    """A refusal in words."""
    if isinstance(reason, Unavailable):
        return str(reason)
    return f"{type(reason).__name__}: {reason}".strip()


def contender(name: str, job: Job) -> Peer:
    """How `name` is called. Raises Unavailable for a peer that has nothing for this spec, and what
    the file of peers raises."""
    if name in (OURS, EAGER, COMPILED):
        file = OURS if name == OURS else EAGER
        module = load_file(Path(job.folder) / f"{file}.py", f"archc_bench_{file}")
        take(module)
        function = getattr(module, job.function)
        made = own(torch.compile(function) if name == COMPILED else function, module, job)
        return _packed(made, job) if job.packed else made
    if job.peers is None:
        raise Unavailable("no file of peers was given: --peers FILE")
    table = load_file(Path(job.peers), "archc_bench_peers").PEERS
    if name not in table:
        raise Unavailable(f"{Path(job.peers).name} has no `{name}`")
    found = table[name].get(job.title) or table[name].get("*")
    if found is None:
        raise Unavailable(f"has nothing for {job.title}")
    return _packed(found, job) if job.packed else found


def _packed(peer: Peer, job: Job) -> Peer:
    """A contender that is given the borders of packed sequences. Raises Unavailable for one that
    does not take them."""
    run = peer.sequence
    if run is None or "borders" not in signature(run).parameters:
        raise Unavailable("has no form for packed sequences")

    def sequence(inputs: Inputs, final: bool) -> Made:
        tokens = next(x.shape[1] for x in inputs.values() if x.dim() > 2)
        return run(inputs, final, borders=borders(job, tokens))

    return replace(peer, sequence=sequence, step=None)


@cache
def _cut(sequences: int, tokens: int, device: str) -> Tensor:
    """Where sequences begin and end that so many tokens are cut into at random places: the same
    tensor each time, by which peers know it again."""
    places = torch.randperm(tokens - 1, generator=torch.Generator().manual_seed(0))
    inner = (places[: sequences - 1] + 1).sort().values.tolist()
    return torch.tensor([0, *inner, tokens], device=device)


def borders(job: Job, tokens: int) -> Tensor:
    """Where the packed sequences of a job begin and end among so many tokens."""
    return _cut(job.packed, tokens, job.device)


def rows_of(peers: str, against: Sequence[str], what: Sequence[str]) -> list[Row]:
    """The rows of a file of peers, in its order, of each what is among `what`, beside those of
    `against` that have something for it. A file without a table has a row for each spec that it
    names under one of these."""
    file = load_file(Path(peers), "archc_bench_peers")
    table, layers = file.PEERS, getattr(file, "LAYERS", {})
    rows: Sequence[Row] = getattr(file, "ROWS", ())
    if not rows:
        rows = [Row(spec) for name in against for spec in table.get(name, {}) if spec != "*"]
        rows += [Row(x, what=(LAYER,)) for name in against for x in layers.get(name, {})]
        rows = [each for place, each in enumerate(rows) if each not in rows[:place]]
    found = []
    for row in rows:
        has = layers if row.whole else table
        others = [n for n in against if n in (EAGER, COMPILED) or row.title in has.get(n, {})]
        wanted = tuple(each for each in row.what if each in what)
        beside = tuple(dict.fromkeys((*others, *row.beside)))
        found += [replace(row, what=wanted, beside=beside)] if wanted else []
    return found


def shapes_of(peers: str) -> Mapping[str, tuple[int, int, int, int]]:
    """The shapes that a file of peers gives for some specs."""
    return getattr(load_file(Path(peers), "archc_bench_peers"), "SHAPES", {})


def own(function: Callable[..., Any], module: Any, job: Job) -> Peer:
    """A generated function, given the sizes that no input has: it returns its outputs and one
    state."""
    takes = signature(function).parameters.values()
    asked = [each.name for each in takes if each.kind is each.KEYWORD_ONLY]
    sizes = {name: job.sizes[name] for name in asked if name in job.sizes}
    fields = tuple(map(identifier, job.states))
    state = next((k for k in vars(module).values() if getattr(k, "_fields", None) == fields), None)

    def split(made: tuple[Any, ...]) -> Made:
        *outputs, after = made
        outputs = outputs[0] if isinstance(outputs[0], tuple) else outputs
        return tuple(outputs), tuple(getattr(after, identifier(name)) for name in job.states)

    def sequence(inputs: Inputs, final: bool, borders: Tensor | None = None) -> Made:
        more = {} if borders is None else {"cu_seqlens": borders}
        return split(function(**entering(inputs), **sizes, **more))

    def step(inputs: Inputs, states: Sequence[Tensor]) -> Made:
        assert state is not None
        return split(function(**entering(inputs), **sizes, state=state(*states)))

    return Peer(sequence, (_on_pools(module, job) or step) if job.states else None)


def _on_pools(module: Any, job: Job) -> Callable[[Inputs, Sequence[Tensor]], Made] | None:
    """The function of a file that does a token on pools of states, in place, if what enters it is
    what enters the memory."""
    found = [made for name, made in vars(module).items() if name.endswith("_decode")]
    if len(found) != 1 or len(job.outputs) != 1:
        return None
    (decode,) = found
    takes = list(signature(decode).parameters)
    wanted = {*map(identifier, (*(each.name for each in job.enters), *job.states))}
    if {*takes[: len(wanted)]} != wanted:
        return None
    sizes = {name: job.sizes[name] for name in takes[len(wanted) :] if name in job.sizes}

    def step(inputs: Inputs, states: Sequence[Tensor]) -> Made:
        pools = entering(dict(zip(job.states, states, strict=True)))
        output, *after = decode(**entering(inputs), **pools, **sizes)
        return (output,), tuple(after)

    return step
