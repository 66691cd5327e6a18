"""Chunk ops -> operations, counted as in `count.py`: of pairs of rows those that are kept."""

from __future__ import annotations

import sympy

from archc.ir import chunk as ck
from archc.ir.count import ZERO, Lengths, Rule, elements, operations
from archc.ir.graph import Node, Type

HALF = sympy.Rational(1, 2)


def _nothing(node: Node, types: list[Type], lengths: Lengths) -> sympy.Expr:
    return ZERO


def _written(node: Node, types: list[Type], lengths: Lengths) -> sympy.Expr:
    return elements(node.type.axes, lengths)


def _read(node: Node, types: list[Type], lengths: Lengths) -> sympy.Expr:
    return elements(types[0].axes, lengths)


def _scan(node: Node, types: list[Type], lengths: Lengths) -> sympy.Expr:
    """A multiply-add for each element, with a matrix for each of its rows."""
    each = 2 if node.op.matrix is None else 2 * types[0].axis(node.op.matrix[0]).size
    return each * _written(node, types, lengths)


def _pairs(node: Node, types: list[Type], lengths: Lengths) -> sympy.Expr:
    """For every pair of rows that is kept, and every dim: a sum of gates, its exponential, two
    products and a sum; of a GateGradient one product more."""
    axes = {axis.name: axis for type in (node.type, *types) for axis in type.axes}
    col = node.op.col if isinstance(node.op, ck.Gram) else axes[node.op.col]
    axes.setdefault(col.name, col)
    each = 6 if isinstance(node.op, ck.GateGradient) else 5
    return each * HALF * elements(axes.values(), lengths)


def _inverse(node: Node, types: list[Type], lengths: Lengths) -> sympy.Expr:
    return types[0].axis(node.op.row).size * _written(node, types, lengths) / 3


def _conjugate(node: Node, types: list[Type], lengths: Lengths) -> sympy.Expr:
    """In each step a product, two inner products and three updates; as many steps as unknowns."""
    size = sympy.Mul(*(node.type.axis(name).size for name in node.op.over))
    steps = size if node.op.iterations is None else node.op.iterations
    return steps * (operations(node.op.body, lengths) + 10 * _written(node, types, lengths))


CHUNK_OPERATIONS: dict[type, Rule] = {
    ck.Chunks: _nothing,
    ck.Tokens: _nothing,
    ck.Stack: _nothing,
    ck.Select: _nothing,
    ck.Place: _nothing,
    ck.Last: _nothing,
    ck.AtLast: _nothing,
    ck.Unwindow: _read,
    ck.Expand: _nothing,
    ck.Sums: _written,
    ck.Move: _nothing,
    ck.Scan: _scan,
    ck.Spans: _written,
    ck.SpansGradient: _read,
    ck.Gram: _pairs,
    ck.Mix: _pairs,
    ck.GateGradient: _pairs,
    ck.Inverse: _inverse,
    ck.Detach: _nothing,
    ck.Conjugate: _conjugate,
}
"""Operations of each chunk op, a sequence; one entry an op."""
