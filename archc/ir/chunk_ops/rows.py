"""Chunk ops along the rows of a chunk."""

from __future__ import annotations

from dataclasses import dataclass

import sympy

from archc.ir.chunk_ops.op import ChunkOp, Moving
from archc.ir.graph import Node, Type
from archc.ir.shapes import Lengths, Types, along, elements, join, require, without


@dataclass(frozen=True)
class Sums(ChunkOp):
    """Cumulative sums along `axis`, from the first element, or with `reverse` from the last.

    "exclusive": the sum before the element's own addition, made by shifting, not by subtracting.
    `gates`: of log gates, whose differences are wanted; what is less than LEAST_GATE counts as it.
    """

    axis: str
    reverse: bool = False
    exclusive: bool = False
    gates: bool = False

    def typed(self, types: Types) -> Type:
        return along(self.axis, types)

    def operations(self, node: Node, types: Types, lengths: Lengths) -> sympy.Expr:
        return elements(node.type.axes, lengths)

    def reduction_dims(self) -> tuple[str, ...]:
        return (self.axis,)


LEAST_GATE = -104.0
"""exp of it is 0 in float32: a log gate can be no less. Sums of such gates stay small enough that
differences of them are right."""


@dataclass(frozen=True)
class Move(Moving):
    """The value `steps` rows earlier along `axis` (later, if negative); `fill` where there is none.
    The axis may be a stream: its `Move` backwards is the transpose of a Shift."""

    axis: str
    steps: int
    fill: int = 0

    def typed(self, types: Types) -> Type:
        return along(self.axis, types)

    def reduction_dims(self) -> tuple[str, ...]:
        return (self.axis,)


@dataclass(frozen=True)
class Scan(ChunkOp):
    """h[i] = a[i] * h[i-1] + b[i] along the rows, for operands a, b and h[-1] (no row).

    `kind` "linear", or "max-plus": h[i] = max(a[i] + h[i-1], b[i]). With `matrix` = (row, col), a
    is a matrix per row, or the same for all: h[i] = a[i] @ h[i-1] + b[i], where h has the axis
    `col` and a also `row`, the same axis of the result. `reverse` walks from the last row.
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
