"""The condition under which the second form of an attention takes fewer operations than the first.

Both forms are linear in the number of readers T, so that the answer is one inequality in T and
T_seen, the number of tokens read: few readers of many tokens take the form made for decoding.
"""

from __future__ import annotations

from typing import Any

import sympy

from archc.ir import layer as ir
from archc.ir.count import operations
from archc.ir.graph import Graph


def decode_pays(op: ir.Attend) -> tuple[sympy.Expr, sympy.Expr]:
    """Two sides, in the layer's sizes, T and the size of `read`: the second form takes fewer
    operations where the left one is smaller than the right one, which is nowhere if both are 0."""
    assert op.decode is not None, "there is one form alone"
    more, T = operations_more(op.body, op.decode), op.reader.size
    if more == 0:
        return sympy.Integer(0), sympy.Integer(0)
    left: Any = more.coeff(T, 1)
    rest: Any = more.coeff(T, 0)
    right = -rest
    common: Any = sympy.gcd(left, right)
    saved: Any = sympy.factor(right / common)
    return T * _short(left / common, op), saved


def operations_more(body: Graph, decode: Graph) -> sympy.Expr:
    """The operations that the second form takes more than the first."""
    return sympy.expand(operations(decode, {}) - operations(body, {}))


def _short(expr: sympy.Expr, op: ir.Attend) -> sympy.Expr:
    """An expression with the terms of each power of the tokens read together."""
    collected = sympy.collect(sympy.expand(expr), op.read.size, evaluate=False)
    return sympy.Add(*(power * sympy.factor(part) for power, part in collected.items()))
