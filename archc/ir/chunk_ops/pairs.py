"""Chunk ops between the rows of a chunk."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import sympy

from archc.dims import Axis
from archc.ir.chunk_ops.op import (
    MADE_FOR_FIRST,
    ChunkOp,
    Cotangents,
    Gradients,
    MadeByGradients,
)
from archc.ir.chunk_ops.rows import FAR
from archc.ir.graph import Node, Type
from archc.ir.named import Named
from archc.ir.shapes import Lengths, Types, elements, join, require, without

if TYPE_CHECKING:
    from torch import Tensor

    from archc.ir.meaning_ops import Scope

SUMS = "sums"
"""The anchor of pairs whose last operand is not gates but sums of them."""


@dataclass(frozen=True)
class _Decays(ChunkOp, part=True):
    """The log of a decay of each pair of rows along `row`, with `col` as a new axis after it; -inf
    where a pair is not kept, so that its exponential is 0."""

    held = "decays"
    row: str
    col: Axis
    strict: bool = False

    def typed(self, types: Types) -> Type:
        return _with_column(types[0], self.row, self.col)

    def operations(self, node: Node, types: Types, lengths: Lengths) -> sympy.Expr:
        return elements(node.type.axes, lengths)

    def reduction_dims(self) -> tuple[str, ...]:
        return (self.row, self.col.name)


@dataclass(frozen=True)
class Spans(_Decays):
    """span[i, j] of log gates."""

    exclusive: bool = False

    def meaning(self, node: Node, scope: Scope, g: Named) -> Named:
        from archc.ir.row_pairs import spans

        rest = g.but(self.row)
        data = spans(g.to([self.row, *rest]), self.strict, self.exclusive)
        return Named(data, (self.row, self.col.name, *rest))

    def gradient(self, b: Gradients, node: Node, d: int) -> Cotangents:
        """y[i, j] = sum of g[r] over j < r <= i: dg[r] = the sum of dy[i, j] over i >= r > j."""
        d = b.full(d, [node.type.axis(self.row), self.col])
        return [b.add(SpansGradient(self.row, self.col.name, self.strict, self.exclusive), d)]


@dataclass(frozen=True)
class Differences(_Decays, MadeByGradients):
    """Spans of gates of which running sums x are at hand: x[i] - x[j]."""

    def meaning(self, node: Node, scope: Scope, x: Named) -> Named:
        from archc.ir.row_pairs import differences

        rest = x.but(self.row)
        data = differences(x.to([self.row, *rest]), self.strict, False)
        return Named(data, (self.row, self.col.name, *rest))


@dataclass(frozen=True)
class SpansGradient(MadeByGradients):
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

    def meaning(self, node: Node, scope: Scope, x: Named) -> Named:
        from archc.ir.row_pairs import between

        rest = x.but(self.row, self.col)
        data = between(x.to([self.row, self.col, *rest]), self.strict, self.exclusive)
        return Named(data, (self.row, *rest))


@dataclass(frozen=True)
class Gram(ChunkOp):
    """A[i, j] = sum over the dims `over` of a[i] exp(span[i, j]) b[j], for operands a, b, g.

    All three run along `row`; in the result `col` stands for the rows of b. The log gate g has at
    least one of the dims summed. `anchor` says how exponents are made: "halves" sums gates from the
    border between the halves of a binary tree of the rows, where no exponent is above 0 for gates
    up to 1: an underflow means that the product is 0 as well. "sums" takes differences: in place of
    g the operand is Sums of it (kernels, where they lie in memory). `signed`: g is the log of the
    size of a gate that may be 0, and the gradient of g will be divided by that.
    """

    held = "scores"
    over: tuple[str, ...]
    row: str
    col: Axis
    strict: bool = False
    exclusive: bool = False
    anchor: str = "halves"
    signed: bool = False

    def typed(self, types: Types) -> Type:
        for type in types:
            require(self.row in type.names, f"gram along {self.row} of {type.names}")
        joined = join([without(type, self.over) for type in types])
        return _with_column(Type(joined), self.row, self.col)

    def operations(self, node: Node, types: Types, lengths: Lengths) -> sympy.Expr:
        return 5 * _pairs(node, types, lengths)

    def reduction_dims(self) -> tuple[str, ...]:
        return (self.row, self.col.name, *self.over)

    def meaning(self, node: Node, scope: Scope, a: Named, b: Named, g: Named) -> Named:
        pair = (self.row, self.col.name)
        rest = [name for name in node.type.names if name not in pair]
        names = [self.row, *rest, *self.over]
        product = a.to(names)[:, None] * _decays(self, g.to(names)) * b.to(names)[None]
        summed = product.sum(list(range(2 + len(rest), product.dim())))
        shape = scope.shape([node.type.axis(name) for name in (*pair, *rest)])
        return Named(summed.expand(shape), (*pair, *rest))

    def gradient(self, b: Gradients, node: Node, d: int) -> Cotangents:
        """A[i, j] = a[i] e^span[i, j] b[j]: da[i] = sum over j of dA e^span b[j],
        db[j] = sum over i of dA e^span a[i]: two Mix; dg is a GateGradient."""
        left, right, gate = node.operands
        kept = (self.row, self.col.name, self.strict, self.exclusive)
        d = b.full(d, [node.type.axis(self.row), self.col])
        to_left = Mix(*kept, anchor=self.anchor, signed=self.signed)
        to_right = replace(to_left, transpose=True)
        return [
            _narrow(b, b.add(to_left, d, right, gate), left),
            _narrow(b, b.add(to_right, d, left, gate), right),
            b.add(GateGradient(*kept, self.anchor, self.signed), d, left, right, gate),
        ]


@dataclass(frozen=True)
class NearGram(Gram):
    """A Gram of rows that stand as they are seen from a row in the middle, for operands
    a exp(G - m), b exp(m - G), Middle m, a, b, and the sums G: its product is that of the first
    two, but in chunks where some m is FAR. Kernels need G of these alone."""

    anchor: str = SUMS

    def typed(self, types: Types) -> Type:
        return super().typed(types[3:])

    def operations(self, node: Node, types: Types, lengths: Lengths) -> sympy.Expr:
        """One product of matrices, as a rule."""
        return 2 * _pairs(node, types[:2], lengths)

    def meaning(
        self, node: Node, scope: Scope, a: Named, b: Named, g: Named, *plain: Named
    ) -> Named:
        import torch

        whole = super().meaning(node, scope, *plain)
        rest = whole.names[2:]
        names = [self.row, *rest, *self.over]
        product = a.to(names)[:, None] * b.to(names)[None]
        product = product.sum(list(range(2 + len(rest), product.dim())))
        at = torch.arange(len(product)).reshape(-1, *[1] * (1 + len(rest)))
        pairs = at > at.transpose(0, 1) if self.strict else at >= at.transpose(0, 1)
        far = (g.to(names)[0] >= FAR).flatten(len(rest)).any(-1)
        near = torch.where(pairs, product, 0.0)
        return Named(torch.where(far, whole.data, near), whole.names)

    def gradient(self, b: Gradients, node: Node, d: int) -> Cotangents:
        b.refuse(node, MADE_FOR_FIRST)


@dataclass(frozen=True)
class Mix(ChunkOp):
    """o[i] = sum over j of A[i, j] exp(span[i, j]) b[j], for operands A, b, g: decayed values.

    g has the row and dims of b. `transpose`: o[j] = sum over i of A[i, j] exp(span[i, j]) b[i].
    """

    held = "mixed"
    row: str
    col: str
    strict: bool = False
    exclusive: bool = False
    transpose: bool = False
    anchor: str = "halves"
    signed: bool = False

    def typed(self, types: Types) -> Type:
        weights, value, gate = types
        require({self.row, self.col} <= set(weights.names), f"mix of {weights.names}")
        require(self.row in value.names and self.row in gate.names, "mix of values along rows")
        return Type(join([without(weights, (self.col,)), value, gate]))

    def operations(self, node: Node, types: Types, lengths: Lengths) -> sympy.Expr:
        return 5 * _pairs(node, types, lengths)

    def reduction_dims(self) -> tuple[str, ...]:
        return (self.row, self.col)

    def meaning(self, node: Node, scope: Scope, weights: Named, value: Named, g: Named) -> Named:
        rest = [name for name in node.type.names if name != self.row]
        decays = _decays(self, g.to([self.row, *rest]))
        pairs = weights.to([self.row, self.col, *rest]) * decays
        data = value.to([self.row, *rest])
        product = pairs * (data[:, None] if self.transpose else data[None])
        return Named(product.sum(0 if self.transpose else 1), (self.row, *rest))

    def gradient(self, b: Gradients, node: Node, d: int) -> Cotangents:
        """o[i] = sum over j of A[i, j] e^span b[j]: dA[i, j] = do[i] e^span b[j], a Gram over the
        dims that A lacks; db[j] = sum over i of A e^span do[i], a Mix; dg is a GateGradient. With
        `transpose` the roles of do and b are exchanged."""
        weights, value, gate = node.operands
        axes, flags = b.type(weights), (self.strict, self.exclusive)
        ends = self.anchor, self.signed
        d = b.full(d, [node.type.axis(self.row)])
        left, right = (value, d) if self.transpose else (d, value)
        every = dict.fromkeys((*b.names(left), *b.names(right), *b.names(gate)))
        over = tuple(name for name in every if name not in axes.names)
        to_weights = Gram(over, self.row, axes.axis(self.col), *flags, *ends)
        to_value = replace(self, transpose=not self.transpose)
        to_gate = GateGradient(self.row, self.col, *flags, *ends)
        return [
            b.add(to_weights, left, right, gate),
            _narrow(b, b.add(to_value, weights, d, gate), value),
            b.add(to_gate, weights, left, right, gate),
        ]


@dataclass(frozen=True)
class GateGradient(MadeByGradients):
    """At r the sum over i >= r > j (exclusive: i > r) of a[i] dA[i, j] exp(span[i, j]) b[j], for
    operands dA, a, b, g: the gates' share of the cotangent of a Gram, and of a Mix. It has the type
    of g. Every addend counts once, nothing is subtracted."""

    held = "d_gates"
    row: str
    col: str
    strict: bool = False
    exclusive: bool = False
    anchor: str = "halves"
    signed: bool = False

    def typed(self, types: Types) -> Type:
        return types[3]

    def operations(self, node: Node, types: Types, lengths: Lengths) -> sympy.Expr:
        """One product more than of a Gram."""
        return 6 * _pairs(node, types, lengths)

    def reduction_dims(self) -> tuple[str, ...]:
        return (self.row, self.col)

    def meaning(self, node: Node, scope: Scope, d: Named, a: Named, b: Named, g: Named) -> Named:
        from archc.ir.row_pairs import between

        rest = list(dict.fromkeys((*g.names, *a.names, *b.names, *d.names)))
        rest = [name for name in rest if name not in (self.row, self.col)]
        names, decays = [self.row, *rest], _decays(self, g.to([self.row, *rest]))
        pairs = a.to(names)[:, None] * d.to([self.row, self.col, *rest]) * decays
        data = between(pairs * b.to(names)[None], self.strict, self.exclusive)
        summed = [1 + i for i, name in enumerate(rest) if name not in g.names]
        data = data.sum(summed) if summed else data
        return Named(data, (self.row, *(name for name in rest if name in g.names)))


def _decays(op: Gram | Mix | GateGradient, gates: Tensor) -> Tensor:
    """How pairs of rows decay, [rows, columns, ...]."""
    from archc.ir.row_pairs import decays

    return decays(gates, op.strict, op.exclusive, op.anchor == SUMS)


def _narrow(b: Gradients, d: int, operand: int) -> int:
    """A cotangent, summed over the axes that its operand lacks."""
    return b.reduce(d, [name for name in b.names(d) if name not in b.names(operand)])


def _pairs(node: Node, types: Types, lengths: Lengths) -> sympy.Expr:
    """Pairs that are kept, times dims: each a sum of gates, its exponential, two products, a
    sum."""
    every = (axis for type in (node.type, *types) for axis in type.axes)
    return sympy.Rational(1, 2) * elements({axis.name: axis for axis in every}.values(), lengths)


def _with_column(type: Type, row: str, col: Axis) -> Type:
    """The type with `col` right after `row`."""
    axes: list[Axis] = []
    for axis in type.axes:
        axes += [axis, col] if axis.name == row else [axis]
    return Type(tuple(axes), type.dtype)
