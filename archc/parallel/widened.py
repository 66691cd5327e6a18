"""A recurrence that does the same to each column of its state, on processes that each have a part
of the sequence: its own kernels tell what a part does to any state, and what it makes of one.

A part's run from the columns [0 | I], with 0 written in those of the identity, ends with [Q | P]:
S_end = P S_start + Q. Its outputs there, [o | R], say what each output has of the state before:
o + R S_start. So the gradient of the state after a part comes from the later parts alone, as
D + P.T dS_end of each, with D = R.T do; none passes the runs that told P and Q.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from archc.ir import layer as ir
from archc.parallel.exchange import told
from archc.parallel.mesh import Ranks
from archc.recurrence.analysis.columns import Columns

Call = Callable[[Sequence[Tensor], Any, bool], tuple[tuple[Tensor, ...], Any]]
"""A piece: outputs and the last state, of its values, the state before them, and whether it is in
training (nothing here draws). A state is a named tuple of one tensor."""


@dataclass(frozen=True)
class Layout:
    """The order of the axes of a value: `names`. As matrices it has those that are shared as a
    batch, and the column last."""

    columns: Columns
    names: tuple[str, ...]

    @property
    def place(self) -> int:
        """Of the column."""
        return self.names.index(self.columns.column)

    def order(self) -> list[int]:
        """The places of the axes as matrices have them."""
        known = (*self.columns.shared, self.columns.column)
        rest = [name for name in self.names if name not in known]
        return [self.names.index(n) for n in (*self.columns.shared, *rest, self.columns.column)]

    def matrices(self, x: Tensor) -> Tensor:
        """[shared, rest, column] of a value."""
        moved, shared = x.permute(self.order()), len(self.columns.shared)
        count = math.prod(moved.shape[:shared])
        return moved.reshape(count, -1, moved.shape[-1])

    def back(self, matrices: Tensor, like: Tensor) -> Tensor:
        """The value that matrices stand for; all axes but the column have the lengths of `like`."""
        order = self.order()
        sizes = [like.shape[i] for i in order[:-1]]
        moved = matrices.reshape(*sizes, matrices.shape[-1])
        return moved.permute([order.index(i) for i in range(len(order))])


class Summaries:
    """The effect of every part on the state, and of the state before them on these outputs."""

    def __init__(self, ranks: Ranks, state: Layout, outputs: Sequence[Layout], name: str):
        self.ranks, self.state, self.outputs, self.name = ranks, state, outputs, name
        self.kept: Sequence[Tensor] = []
        self.moves: list[Tensor] = []

    def start(self, run: Callable[[Tensor], tuple[Sequence[Tensor], Tensor]], first: Tensor
              ) -> Tensor:  # fmt: skip
        """The state before this process's tokens, from that before all of them. `run`: outputs and
        last state from a state of more columns."""
        before = self.state.matrices(first)
        count, rows, width = before.shape
        unit = torch.eye(rows, dtype=first.dtype, device=first.device).expand(count, rows, rows)
        made, end = run(self.state.back(torch.cat([torch.zeros_like(before), unit], -1), first))
        self.moves = [  # contiguous: nothing else of the wide outputs is kept for the gradient
            layout.matrices(x.narrow(layout.place, width, rows)).contiguous()
            for layout, x in zip(self.outputs, made, strict=True)
        ]
        every = told(self.ranks, f"summaries of {self.name}", self.state.matrices(end))
        added, self.kept = zip(*(each.split([width, rows], -1) for each in every), strict=True)
        for move, add in zip(self.kept[: self.ranks.rank], added, strict=False):
            before = torch.baddbmm(add, move, before)
        return self.state.back(before, first)

    def slope(self, slopes: Sequence[Tensor], like: Tensor) -> Tensor:
        """The gradient of the state after this process's tokens, from those of all outputs."""
        pairs = zip(self.outputs, self.moves, slopes, strict=True)
        own = torch.stack([products(move, layout.matrices(d)) for layout, move, d in pairs]).sum(0)
        what = f"gradients of the states of {self.name}"
        every = told(self.ranks, what, own.to(like.dtype))
        found = torch.zeros_like(every[0])
        for i in reversed(range(self.ranks.rank + 1, self.ranks.count)):
            found = torch.baddbmm(every[i], self.kept[i].transpose(1, 2), found)
        return self.state.back(found, like)


def products(a: Tensor, b: Tensor) -> Tensor:
    """a.T @ b for each matrix, in float32 at least."""
    if a.is_cuda and a.itemsize < 4:
        return torch.bmm(a.transpose(1, 2), b.to(a.dtype), out_dtype=torch.float32)
    wide = torch.promote_types(a.dtype, torch.float32)
    return a.to(wide).transpose(1, 2) @ b.to(wide)


class _Heard(torch.autograd.Function):
    """The outputs of a part as they are; backward, the state after it is given the gradient that
    the later parts have for it."""

    @staticmethod
    def forward(ctx: Any, summaries: Summaries, end: Tensor, *made: Tensor) -> Any:
        ctx.summaries = summaries
        ctx.save_for_backward(end)
        return tuple(each.view_as(each) for each in made)

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> Any:
        (end,) = ctx.saved_tensors
        return None, ctx.summaries.slope(slopes, end), *slopes


def by_columns(
    ranks: Ranks, columns: Columns, layer: ir.Layer, call: Call, values: Sequence[Tensor],
    first: Any,
) -> tuple[Tensor, ...]:  # fmt: skip
    """The outputs of a piece for this process's part of the sequence, with `first` as the state
    before all tokens."""
    outputs = [layer.graph[id].type.names for id in layer.graph.outputs.values()]
    state = Layout(columns, tuple(axis.name for axis in columns.state.axes))
    layouts = [Layout(columns, names) for names in outputs]
    summaries = Summaries(ranks, state, layouts, layer.name)
    (start,) = first
    places = [
        op.type.names.index(columns.column) if columns.column in op.type.names else None
        for _, op in layer.inputs
    ]

    def run(wide: Tensor) -> tuple[Sequence[Tensor], Tensor]:
        more = wide.shape[state.place] - start.shape[state.place]
        pairs = zip(values, places, strict=True)
        inner = [x if place is None else widened(x, place, more) for x, place in pairs]
        made, (end,) = call(inner, type(first)(wide), False)
        return made, end

    with torch.no_grad():
        before = summaries.start(run, start)
    made, (end,) = call(values, first if ranks.rank == 0 else type(first)(before), False)
    if not any(each.requires_grad for each in made):
        return made
    return _Heard.apply(summaries, end, *made)


def widened(x: Tensor, place: int, more: int) -> Tensor:
    """A value with columns of 0 behind its own."""
    shape = list(x.shape)
    shape[place] = more
    return torch.cat([x, x.new_zeros(shape)], place)
