"""Chunk ops that solve systems of equations."""

from __future__ import annotations

from dataclasses import dataclass

import sympy

from archc.ir.chunk_ops.op import ChunkOp
from archc.ir.graph import Graph, Node, Type
from archc.ir.shapes import Lengths, Types, elements, require


@dataclass(frozen=True)
class Inverse(ChunkOp):
    """(I - A)^-1 of a matrix A[row, col] that is 0 on the diagonal and above."""

    row: str
    col: str

    in_order = True

    def typed(self, types: Types) -> Type:
        require({self.row, self.col} <= set(types[0].names), "inverse of a matrix")
        return types[0]

    def operations(self, node: Node, types: Types, lengths: Lengths) -> sympy.Expr:
        return types[0].axis(self.row).size * elements(node.type.axes, lengths) / 3

    def reduction_dims(self) -> tuple[str, ...]:
        return (self.row, self.col)


@dataclass(frozen=True, eq=False)
class Conjugate(ChunkOp):
    """z with M z = b, where M is symmetric, positive definite and given by its products alone.

    `body` computes the product M p from its input "p" and from inputs named as in `captures`; its
    output is "product". Operands: b, then one for each capture. Axes of `over` are those of the
    system; every other axis is a system of its own. The meaning is the exact solution;
    `iterations` bounds the conjugate gradients (None: until it is exact).
    """

    over: tuple[str, ...]
    captures: tuple[str, ...]
    body: Graph
    iterations: sympy.Expr | None = None

    in_order = True

    def typed(self, types: Types) -> Type:
        require(len(types) == 1 + len(self.captures), "an operand for each capture")
        return self.body[self.body.outputs["product"]].type

    @property
    def inner(self) -> Graph:
        return self.body

    def inner_runs(self, node: Node) -> sympy.Expr:
        """As many as unknowns, unless they are bounded."""
        size = sympy.Mul(*(node.type.axis(name).size for name in self.over))
        return size if self.iterations is None else self.iterations

    def operations(self, node: Node, types: Types, lengths: Lengths) -> sympy.Expr:
        """In each step, besides the product, two inner products and three updates."""
        return 10 * elements(node.type.axes, lengths)

    def reduction_dims(self) -> tuple[str, ...]:
        """Besides those, what its products cross (`archc/schedule/axes.py`)."""
        return self.over
