"""Chunk ops along the rows of a chunk."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import sympy

from archc.ir.chunk_ops.op import (
    MADE_FOR_FIRST,
    ChunkOp,
    Cotangents,
    Gradients,
    MadeByGradients,
    Moving,
)
from archc.ir.chunk_ops.stacks import Place, Select
from archc.ir.graph import Node, Type
from archc.ir.named import Named
from archc.ir.shapes import Lengths, Types, along, arrange, elements, join, require, without

if TYPE_CHECKING:
    from torch import Tensor

    from archc.ir.meaning_ops import Scope


class AlongAxis:
    """The type and the dims of an op whose result is like its operand, `axis` one of its axes."""

    axis: str

    def typed(self, types: Types) -> Type:
        return along(self.axis, types)

    def reduction_dims(self) -> tuple[str, ...]:
        return (self.axis,)


@dataclass(frozen=True)
class Sums(AlongAxis, ChunkOp):
    """Cumulative sums along `axis`, from the first element, or with `reverse` from the last.

    "exclusive": the sum before the element's own addition, made by shifting, not by subtracting.
    `gates`: of log gates, whose differences are wanted; what is less than LEAST_GATE counts as it.
    """

    changed = "sums"
    axis: str
    reverse: bool = False
    exclusive: bool = False
    gates: bool = False

    def operations(self, node: Node, types: Types, lengths: Lengths) -> sympy.Expr:
        return elements(node.type.axes, lengths)

    def meaning(self, node: Node, scope: Scope, x: Named) -> Named:
        along = x.names.index(self.axis)
        data = x.data.flip(along) if self.reverse else x.data
        if self.gates:
            data = data.clamp(min=LEAST_GATE)
        if self.exclusive:
            data = _moved(data, along, 1)
        data = data.cumsum(along)
        return Named(data.flip(along) if self.reverse else data, x.names)

    def gradient(self, b: Gradients, node: Node, d: int) -> Cotangents:
        """y[i] = sum of x[j] over j <= i: dx[j] = sum of dy[i] over i >= j."""
        back = replace(self, reverse=not self.reverse)
        return [b.add(back, b.full(d, [node.type.axis(self.axis)]))]


LEAST_GATE = -104.0
"""exp of it is 0 in float32: a log gate can be no less. Sums of such gates stay small enough that
differences of them are right."""

LARGEST_SCALE = sympy.Integer(2) ** 127
"""About the largest number of float32: no scale of rows is larger."""


@dataclass(frozen=True)
class Rest(AlongAxis, MadeByGradients):
    """What follows each row along `axis`, of running sums: the last one less that of the row."""

    changed = "rest"
    axis: str

    def operations(self, node: Node, types: Types, lengths: Lengths) -> sympy.Expr:
        return elements(node.type.axes, lengths)

    def meaning(self, node: Node, scope: Scope, x: Named) -> Named:
        along = x.names.index(self.axis)
        return Named(x.data.narrow(along, x.data.shape[along] - 1, 1) - x.data, x.names)


@dataclass(frozen=True)
class Less(AlongAxis, MadeByGradients):
    """Running sums along `axis` less a number that all of its rows have in common; with `last` the
    last one alone."""

    changed = "less"
    axis: str
    last: bool = False

    def typed(self, types: Types) -> Type:
        return without(types[0], (self.axis,)) if self.last else super().typed(types)

    def operations(self, node: Node, types: Types, lengths: Lengths) -> sympy.Expr:
        return elements(node.type.axes, lengths)

    def meaning(self, node: Node, scope: Scope, x: Named, by: Named) -> Named:
        along, rest = x.names.index(self.axis), x.but(self.axis)
        left = x.data - by.to(rest).unsqueeze(along)
        return Named(left.select(along, -1), tuple(rest)) if self.last else Named(left, x.names)


FAR, NEAREST, NEAREST_NARROW = 10**6, 64, 4
"""What Middle is where a sum is far; how far one is at most: so large an exponent, of either sign,
has room in the range of float32, and in that of float16. Numbers up to 5e10 (1e3) have room above
it, and down to 1e-10 (1e-3) all their digits below."""


@dataclass(frozen=True)
class Middle(MadeByGradients):
    """Half of the last of running sums along `axis`, about, or FAR where another sum is far from
    it. It is the log of a power of 2, with which numbers are scaled exactly."""

    held = "middle"
    axis: str

    def typed(self, types: Types) -> Type:
        return without(types[0], (self.axis,))

    def reduction_dims(self) -> tuple[str, ...]:
        return (self.axis,)

    def operations(self, node: Node, types: Types, lengths: Lengths) -> sympy.Expr:
        return 3 * elements(types[0].axes, lengths)

    def meaning(self, node: Node, scope: Scope, x: Named) -> Named:
        import torch

        along = x.names.index(self.axis)
        last = x.data.select(along, x.data.shape[along] - 1)
        found = torch.floor(last / (2 * math.log(2)) + 0.5) * math.log(2)
        far = (x.data - found.unsqueeze(along)).abs().amax(along) > NEAREST
        return Named(found.masked_fill(far, FAR), tuple(x.but(self.axis)))


@dataclass(frozen=True)
class Move(AlongAxis, Moving):
    """The value `steps` rows earlier along `axis` (later, if negative); `fill` where there is none.
    The axis may be a stream: its `Move` backwards is the transpose of a Shift."""

    changed = "moved"
    axis: str
    steps: int
    fill: int = 0

    def meaning(self, node: Node, scope: Scope, x: Named) -> Named:
        return Named(_moved(x.data, x.names.index(self.axis), self.steps, self.fill), x.names)

    def gradient(self, b: Gradients, node: Node, d: int) -> Cotangents:
        """y[i] = x[i - n]: dx[i] = dy[i + n], 0 where there is none."""
        return [b.add(Move(self.axis, -self.steps), b.full(d, [node.type.axis(self.axis)]))]


@dataclass(frozen=True)
class Scan(ChunkOp):
    """h[i] = a[i] * h[i-1] + b[i] along the rows, for operands a, b and h[-1] (no row).

    `kind` "linear", or "max-plus": h[i] = max(a[i] + h[i-1], b[i]), or "max-times", for a >= 0 and
    finite numbers: h[i] = max(a[i] * h[i-1], b[i]). With `matrix` = (row, col), a is a matrix per
    row, or the same for all: h[i] = a[i] @ h[i-1] + b[i], where h has the axis `col` and a also
    `row`, the same axis of the result. `reverse` walks from the last row.
    "exclusive": the value before each row, h[i-1], in place of h[i].
    """

    axis: str
    kind: str = "linear"
    matrix: tuple[str, str] | None = None
    reverse: bool = False
    exclusive: bool = False

    in_order = True

    def typed(self, types: Types) -> Type:
        a, b, first = types
        require(self.axis not in first.names, "scan starts from a value before its rows")
        numbers = self.kind == "linear" and self.matrix is None
        require(numbers or not self.exclusive, "a value before each row is one of linear scans")
        if self.matrix is not None:
            row, col = self.matrix
            require({row, col} <= set(a.names) and col in b.names, "scan with a matrix")
            a = without(a, (row,))
        joined = Type(join([b, a, first]))
        require(self.axis in joined.names, f"scan along {self.axis}")
        return joined

    def operations(self, node: Node, types: Types, lengths: Lengths) -> sympy.Expr:
        """A multiply-add for each element, with a matrix for each of its rows."""
        each = 2 if self.matrix is None else 2 * types[0].axis(self.matrix[0]).size
        return each * elements(node.type.axes, lengths)

    def reduction_dims(self) -> tuple[str, ...]:
        return (self.axis, *(self.matrix or ()))

    def meaning(self, node: Node, scope: Scope, a: Named, b: Named, first: Named) -> Named:
        """Row by row, each from the one before."""
        import torch

        rest = [name for name in node.type.names if name != self.axis]
        (length,) = scope.shape([node.type.axis(self.axis)])
        shape = scope.shape([axis for axis in node.type.axes if axis.name != self.axis])
        state, rows = first.to(rest).expand(shape), []
        for i in range(length)[:: -1 if self.reverse else 1]:
            before, given = Named(state, tuple(rest)), _row(a, self.axis, i)
            state = self._step(given, _row(b, self.axis, i).to(rest), before, rest).expand(shape)
            rows.append(before.data if self.exclusive else state)
        rows = rows[::-1] if self.reverse else rows
        data = torch.stack(rows) if rows else scope.like.new_zeros((0, *shape))
        return Named(data, (self.axis, *rest))

    def _step(self, a: Named, added: Tensor, state: Named, rest: list[str]) -> Tensor:
        """One step, its dims as in `rest`."""
        if self.kind == "max-plus":
            return (a.to(rest) + state.data).maximum(added)
        if self.kind == "max-times":
            return (a.to(rest) * state.data).maximum(added)
        if self.matrix is None:
            return a.to(rest) * state.data + added
        row, col = self.matrix
        wide = [*rest, row]
        product = (a.to(wide) * state.to(wide)).sum(rest.index(col))
        new = [col if name == row else name for name in wide if name != col]
        return Named(product, tuple(new)).to(rest) + added

    def gradient(self, b: Gradients, node: Node, d: int) -> Cotangents:
        """h[i] = a[i] h[i-1] + b[i]: the cotangents e[i] = dh[i] + a[i+1]^T e[i+1] are a scan the
        other way; db = e, da[i] = e[i] h[i-1]^T, dh[-1] = a[0]^T e[0]."""
        a, added, first = node.operands
        if self.kind != "linear":
            b.refuse(node, "a running maximum; let nothing but a Detach read it")
        if self.exclusive:
            b.refuse(node, MADE_FOR_FIRST)
        axis, start = node.type.axis(self.axis), -1 if self.reverse else 0
        system = [] if self.matrix is None else [node.type.axis(self.matrix[1])]
        back = a if self.matrix is None else _transposed(b, a, *self.matrix)
        later = back
        if axis.name in b.names(a):
            later = b.add(Move(axis.name, 1 if self.reverse else -1), back)
        flow = replace(self, reverse=not self.reverse)
        e = b.add(flow, later, b.full(d, [axis, *system]), b.zeros(Type(tuple(system))))
        at_start = b.add(Select(axis.name, start), back) if axis.name in b.names(back) else back
        begun = self._applied(b, at_start, b.add(Select(axis.name, start), e))
        return [
            self._factor(b, node, e, start),
            b.fit(e, node.type, b.type(added)),
            b.fit(begun, without(node.type, (axis.name,)), b.type(first)),
        ]

    def _applied(self, b: Gradients, a: int, e: int) -> int:
        """a e, a product with a matrix where the scan has one."""
        if self.matrix is None:
            return b.mul(a, e)
        row, col = self.matrix
        axis = b.type(e).axis(col)
        every = arrange(tuple(dict.fromkeys((*b.type(e).axes, *b.type(a).axes))))
        out = [(x.name, axis if x.name == row else x) for x in every if x.name != col]
        return b.contract([(a, b.names(a)), (e, b.names(e))], out)

    def _factor(self, b: Gradients, node: Node, e: int, start: int) -> int:
        """da[i] = e[i] h[i-1]^T, summed over what a lacks."""
        a, _, first = node.operands
        moved = b.add(Move(self.axis, -1 if self.reverse else 1), node.id)
        before = b.fn("add", moved, b.add(Place(node.type.axis(self.axis), start), first))
        if self.matrix is None:
            return b.fit(b.mul(e, before), node.type, b.type(a))
        row, col = self.matrix
        rows = [row if name == col else name for name in b.names(e)]
        out = [(axis.name, axis) for axis in b.type(a).axes]
        return b.contract([(e, rows), (before, b.names(before))], out)


def _moved(data: Tensor, along: int, steps: int, fill: int = 0) -> Tensor:
    from archc.ir.row_pairs import moved

    return moved(data, along, steps, fill)


def _row(x: Named, axis: str, i: int) -> Named:
    """A value at one row; one without rows is the same at all."""
    if axis not in x.names:
        return x
    return Named(x.data.select(x.names.index(axis), i), tuple(x.but(axis)))


def _transposed(b: Gradients, a: int, row: str, col: str) -> int:
    """A matrix with its rows as columns."""
    axes = b.type(a)
    return b.renamed(a, {row: axes.axis(col), col: axes.axis(row)})
