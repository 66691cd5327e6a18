"""Contenders: the generated file, its PyTorch alone, and the peers of a file of peers.

A file of peers is a Python file with a table `PEERS[name][spec]` of `Peer`s, where spec is the name
of a spec, or `*` for any. It may also have `LAYERS[name][spec]`, functions from the sizes of a spec
to a peer's whole layer, an nn.Module; `SHAPES[spec]`, the batch, tokens, heads and dim at which a
spec is compared on a GPU; `PACKAGES`, the distributions whose versions are noted. Peers are
imported when they are called: one that is missing is reported as that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from inspect import signature
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from archc.backends.renamed import entering
from archc.backends.writer import identifier
from archc.bench.drawn import load_file
from archc.bench.job import COMPILED, EAGER, OURS, Job

Inputs = Mapping[str, Tensor]
Made = tuple[tuple[Tensor, ...], tuple[Tensor, ...]]
"""Outputs, and states to continue from."""


@dataclass(frozen=True)
class Peer:
    """How a peer is called for a spec.

    `sequence(inputs, final)` and `step(inputs, states)` return outputs and states, each a tuple;
    without `final` no states are wanted. What `same` denies is no other form of the spec but
    something to compare times with: its numbers are not held against the oracle. `note` is shown.
    """

    sequence: Callable[[Inputs, bool], Made] | None = None
    step: Callable[[Inputs, Sequence[Tensor]], Made] | None = None
    same: bool = True
    note: str = ""


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
        function = getattr(module, job.function)
        return own(torch.compile(function) if name == COMPILED else function, module, job)
    if job.peers is None:
        raise Unavailable("no file of peers was given: --peers FILE")
    table = load_file(Path(job.peers), "archc_bench_peers").PEERS
    if name not in table:
        raise Unavailable(f"{Path(job.peers).name} has no `{name}`")
    found = table[name].get(job.title) or table[name].get("*")
    if found is None:
        raise Unavailable(f"has nothing for {job.title}")
    return found


def rows_of(peers: str, against: Sequence[str], whole: bool) -> tuple[str, ...]:
    """The specs that a file of peers names under one of these peers, in the order of the file:
    those with a memory, or with a whole layer."""
    file = load_file(Path(peers), "archc_bench_peers")
    table = getattr(file, "LAYERS", {}) if whole else file.PEERS
    rows = [spec for name in against for spec in table.get(name, {}) if spec != "*"]
    return tuple(dict.fromkeys(rows))


def shapes_of(peers: str) -> Mapping[str, tuple[int, int, int, int]]:
    """The shapes that a file of peers gives for some specs."""
    return getattr(load_file(Path(peers), "archc_bench_peers"), "SHAPES", {})


def own(function: Callable[..., Any], module: Any, job: Job) -> Peer:
    """A generated function: it returns its outputs and one state."""
    state = next((kind for name, kind in vars(module).items() if name.endswith("State")), None)

    def split(made: tuple[Any, ...]) -> Made:
        *outputs, after = made
        outputs = outputs[0] if isinstance(outputs[0], tuple) else outputs
        return tuple(outputs), tuple(after)

    def sequence(inputs: Inputs, final: bool) -> Made:
        return split(function(**entering(inputs)))

    def step(inputs: Inputs, states: Sequence[Tensor]) -> Made:
        assert state is not None
        return split(function(**entering(inputs), state=state(*states)))

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

    def step(inputs: Inputs, states: Sequence[Tensor]) -> Made:
        pools = entering(dict(zip(job.states, states, strict=True)))
        output, *after = decode(**entering(inputs), **pools)
        return (output,), tuple(after)

    return step
