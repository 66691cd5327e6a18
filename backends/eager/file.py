"""The parts that the functions and classes of one generated file share."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from archc.backends.embedding import exported
from archc.backends.renamed import spelled
from archc.backends.writer import Names

from archc.ir import layer as ir
from archc.tile.language import Program

TOP_LEVEL = frozenset({"CASE", "FORMS", "SPACE", "example", "use_tuned"})
"""Names that a file defines beside its layers, or takes from the runtime."""


@cache
def top_level() -> frozenset[str]:
    """Names that no class or function of a layer may have."""
    return TOP_LEVEL | {*exported()}


def state_of(name: str) -> str:
    """The class of what a layer's class remembers."""
    return f"{name}State"


@dataclass
class KernelWriters:
    """Who writes what is done by kernels: `by_kernels` the functions that launch them for chunks,
    `by_steps` those whose kernels walk tokens, `by_ops` the ops of torch that call them, `by_folds`
    the kernels of an attend, `by_regions` what stands around all of these; None: PyTorch does."""

    by_kernels: Callable[..., Any] | None = None
    by_steps: Callable[..., Any] | None = None
    by_ops: Callable[..., Any] | None = None
    by_folds: Callable[..., Any] | None = None
    by_regions: Callable[..., Any] | None = None


@dataclass
class File(KernelWriters):
    """A file under construction: its top-level names, and its sections in order; `ending` are those
    that come last. What these call of the runtime is found from their text (`assembly.py`).
    `titles` are names of kernels by what they are without one: another of the same text needs no
    second; `stand_ins` are launches of others in their place, by the same; `linear`: products with
    parameters are calls of `nn.Linear`; `slots`: a call reads one token of each of several
    sequences, and writes what it keeps into memory that is there; `programs` are the kernels that
    are tile programs.
    """

    names: Names = field(default_factory=lambda: Names(top_level()))
    sections: list[str] = field(default_factory=list)
    by_parts: Callable[..., Any] | None = None
    spaced: bool = False
    linear: bool = False
    slots: bool = False
    titles: dict[Hashable, str] = field(default_factory=dict)
    stand_ins: dict[Hashable, Any] = field(default_factory=dict)
    programs: dict[str, Program] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    attends: list[str] = field(default_factory=list)
    token_notes: list[str] = field(default_factory=list)
    ending: list[str] = field(default_factory=list)
    constants: dict[str, int] = field(default_factory=dict)

    def classes_of(self, layers: Sequence[ir.Layer]) -> dict[int, str]:
        """The class of each layer, by its identity, the first as near to its own name as can be.
        No other name of the file is one that a value has: functions must see both."""
        spoken = {name for layer in layers for name in spelled(layer)}
        found = dict[int, str]()
        for layer in layers:
            name = self.names.fresh(layer.name)
            taken = spoken | self.names.taken - {name}
            while {state_of(name), *([name] if found else [])} & taken:
                name = self.names.fresh(layer.name)
            self.names.taken.add(state_of(name))
            found[id(layer)] = name
        self.names.taken |= spoken
        return found

    def constant(self, name: str, value: int) -> str:
        """The name of a number at the head of the file; another number has another name."""
        found, count = name, 1
        while self.constants.setdefault(found, value) != value:
            count += 1
            found = f"{name}_{count}"
        return found
