"""Dims of one side of a matrix state that decay together, as one dim: the keys, or the values.

    S[M, K, V] decays by f[M, K]    ->    S[M K, V] by f[M K]

Pairs of rows that decay along several dims are products along all of them at once. Counted as one
dim they are those of a plain key, for which there are kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isinf, prod

import sympy

from archc.dims import Axis, free_symbols
from archc.functions.interval import Interval
from archc.ir import layer as ir
from archc.ir.free_names import marked
from archc.ir.sizes import Number, evaluate
from archc.numerics.constants import number_interval
from archc.recurrence.affine.form import NormalForm
from archc.recurrence.chunk.frame import Frame

MOST, USUAL, LEAST = 256, 128, 16
"""Entries of a dim that kernels have room for beside a chunk; those of one without a default, and
those that kernels take the shortest dim for."""

Sides = tuple[Sequence[Axis], Sequence[Axis]]
"""Axes of the keys, and of the values."""


@dataclass(frozen=True)
class Merge:
    """The dims `axes`, counted as `into`, the last of them fastest."""

    frame: Frame
    axes: tuple[Axis, ...]
    into: Axis

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the dims."""
        return tuple(axis.name for axis in self.axes)

    def of(self, id: int) -> int:
        """A value with one dim for all of them; itself if it has none of them."""
        frame = self.frame
        if not frame.has(id, self.names):
            return id
        id = frame.full(id, self.axes)
        own = frame.graph[id].type
        rest = [axis for axis in own.axes if axis.name not in self.names]
        place = next(i for i, axis in enumerate(own.axes) if axis.name in self.names)
        order = (*rest[:place], *self.axes, *rest[place:])
        if order != own.axes:
            out = tuple((axis.name, axis) for axis in order)
            id = frame.add(ir.Contract((own.names,), out), id)
        return frame.add(ir.Reshape(self.names, (self.into,)), id)

    def back(self, id: int) -> int:
        """A value with the dims again."""
        if not self.frame.has(id, (self.into.name,)):
            return id
        return self.frame.add(ir.Reshape((self.into.name,), self.axes), id)


def merged_state(merges: Sequence[Merge], state: ir.State) -> ir.State:
    """A state with one dim for those of each."""
    axes = state.axes
    for merge in merges:
        rest = [axis for axis in axes if axis.name not in merge.names]
        place = next(i for i, axis in enumerate(axes) if axis.name in merge.names)
        axes = (*rest[:place], merge.into, *rest[place:])
    return replace(state, axes=axes)


def at_most(usual: Mapping[str, Number], known: Mapping[str, Interval], size: sympy.Expr) -> float:
    """A size by default, or else the largest that it is known to be."""
    given = {symbol.name for symbol in free_symbols(size)} <= {*usual}
    return float(evaluate(size, usual) if given else number_interval(size, known).high)


def sides_of(form: NormalForm, most: Callable[[sympy.Expr], float]) -> Sides:
    """The key axes and the value axes of the states of a form, if they may be counted as one dim:
    together they are at most MOST by default, where a size without one is taken for USUAL, and a
    shorter one for LEAST."""
    first = form.forms[0]
    alike = all(each.value == first.value for each in form.forms)
    sizes = [[most(axis.size) for axis in axes] for axes in (first.key, first.value)]
    few = [prod(USUAL if isinf(n) else max(n, LEAST) for n in each) <= MOST for each in sizes]
    return first.key if few[0] else (), first.value if alike and few[1] else ()


def merge_of(
    frame: Frame, axes: Sequence[Axis], gates: Collection[int | None], taken: Collection[str]
) -> Merge | None:
    """The dims of a side as one, if there are several and a gate varies along some of them."""
    names = [axis.name for axis in axes]
    if len(axes) < 2 or not any(gate is not None and frame.has(gate, names) for gate in gates):
        return None
    size = axes[0].size
    for axis in axes[1:]:
        size = size * axis.size
    return Merge(frame, tuple(axes), Axis(marked("_".join(names), {*taken}, "_"), size))
