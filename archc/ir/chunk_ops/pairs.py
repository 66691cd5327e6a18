"""Chunk ops between the rows of a chunk."""

from __future__ import annotations

from dataclasses import dataclass

import sympy

from archc.dims import Axis
from archc.ir.chunk_ops.op import ChunkOp
from archc.ir.graph import Node, Type
from archc.ir.shapes import Lengths, Types, elements, join, require, without

SUMS = "sums"
"""The anchor of pairs whose last operand is not gates but sums of them."""


@dataclass(frozen=True)
class Spans(ChunkOp):
    """span[i, j] of log gates along `row`, with `col` as a new axis after it; -inf where a pair is
    not kept, so that its exponential is 0."""

    row: str
    col: Axis
    strict: bool = False
    exclusive: bool = False

    def typed(self, types: Types) -> Type:
        return _with_column(types[0], self.row, self.col)

    def operations(self, node: Node, types: Types, lengths: Lengths) -> sympy.Expr:
        return elements(node.type.axes, lengths)

    def reduction_dims(self) -> tuple[str, ...]:
        return (self.row, self.col.name)


@dataclass(frozen=True)
class SpansGradient(ChunkOp):
    """The gates' share of a cotangent of Spans [row, col]: at r the sum over i >= r > j of it."""

    row: str
    col: str
    strict: bool = False
    exclusive: bool = False

    def typed(self, types: Types) -> Type:
        return without(types[0], (self.col,))

    def operations(self, node: Node, types: Types, lengths: Lengths) -> sympy.Expr:
        return elements(types[0].axes, lengths)

    def reduction_dims(self) -> tuple[str, ...]:
        return (self.row, self.col)


@dataclass(frozen=True)
class Gram(ChunkOp):
    """A[i, j] = sum over the dims `over` of a[i] exp(span[i, j]) b[j], for operands a, b, g.

    All three run along `row`; in the result `col` stands for the rows of b. The log gate g has at
    least one of the dims summed. `anchor` says how exponents are made: "halves" sums gates from the
    border between the halves of a binary tree of the rows, where no exponent is above 0 for gates
    up to 1: an underflow means that the product is 0 as well. "sums" takes differences: in place of
    g the operand is Sums of it (kernels, where they lie in memory).
    """

    over: tuple[str, ...]
    row: str
    col: Axis
    strict: bool = False
    exclusive: bool = False
    anchor: str = "halves"

    def typed(self, types: Types) -> Type:
        for type in types:
            require(self.row in type.names, f"gram along {self.row} of {type.names}")
        joined = join([without(type, self.over) for type in types])
        return _with_column(Type(joined), self.row, self.col)

    def operations(self, node: Node, types: Types, lengths: Lengths) -> sympy.Expr:
        return 5 * _pairs(node, types, lengths)

    def reduction_dims(self) -> tuple[str, ...]:
        return (self.row, self.col.name, *self.over)


@dataclass(frozen=True)
class Mix(ChunkOp):
    """o[i] = sum over j of A[i, j] exp(span[i, j]) b[j], for operands A, b, g: decayed values.

    g has the row and dims of b. `transpose`: o[j] = sum over i of A[i, j] exp(span[i, j]) b[i].
    """

    row: str
    col: str
    strict: bool = False
    exclusive: bool = False
    transpose: bool = False
    anchor: str = "halves"

    def typed(self, types: Types) -> Type:
        weights, value, gate = types
        require({self.row, self.col} <= set(weights.names), f"mix of {weights.names}")
        require(self.row in value.names and self.row in gate.names, "mix of values along rows")
        return Type(join([without(weights, (self.col,)), value, gate]))

    def operations(self, node: Node, types: Types, lengths: Lengths) -> sympy.Expr:
        return 5 * _pairs(node, types, lengths)

    def reduction_dims(self) -> tuple[str, ...]:
        return (self.row, self.col)


@dataclass(frozen=True)
class GateGradient(ChunkOp):
    """At r the sum over i >= r > j (exclusive: i > r) of a[i] dA[i, j] exp(span[i, j]) b[j], for
    operands dA, a, b, g: the gates' share of the cotangent of a Gram, and of a Mix. It has the type
    of g. Every addend counts once, nothing is subtracted."""

    row: str
    col: str
    strict: bool = False
    exclusive: bool = False
    anchor: str = "halves"

    def typed(self, types: Types) -> Type:
        return types[3]

    def operations(self, node: Node, types: Types, lengths: Lengths) -> sympy.Expr:
        """One product more than of a Gram."""
        return 6 * _pairs(node, types, lengths)

    def reduction_dims(self) -> tuple[str, ...]:
        return (self.row, self.col)


def _pairs(node: Node, types: Types, lengths: Lengths) -> sympy.Expr:
    """Pairs of rows that are kept, times dims: each a sum of gates, its exponential, two products
    and a sum."""
    every = (axis for type in (node.type, *types) for axis in type.axes)
    return sympy.Rational(1, 2) * elements({axis.name: axis for axis in every}.values(), lengths)


def _with_column(type: Type, row: str, col: Axis) -> Type:
    """The type with `col` right after `row`."""
    axes: list[Axis] = []
    for axis in type.axes:
        axes += [axis, col] if axis.name == row else [axis]
    return Type(tuple(axes), type.dtype)
