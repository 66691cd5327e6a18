"""How far an `attend` reaches: whether every token read has come, and how many of the latest are
read at most. Both are read off comparisons of positions, which are linear in them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import sympy

from archc.elaborate.scope import BlockStream, Scope
from archc.elaborate.whole import whole
from archc.syntax import tree


@dataclass(frozen=True)
class Linear:
    """`read` and `reader` times the positions of the token read and of the reader, and `rest`."""

    read: sympy.Expr
    reader: sympy.Expr
    rest: sympy.Expr

    def __add__(self, other: Linear) -> Linear:
        return Linear(self.read + other.read, self.reader + other.reader, self.rest + other.rest)

    def times(self, factor: sympy.Expr) -> Linear:
        return Linear(self.read * factor, self.reader * factor, self.rest * factor)


ONE, ZERO = sympy.Integer(1), sympy.Integer(0)


def reach(
    inner: Scope, node: tree.Attend, variable: str, blocks: BlockStream | None
) -> tuple[sympy.Expr | None, bool]:
    """How many of the latest tokens are read at most (None: any number), and whether none of them
    lies ahead of the reader, whatever the sizes."""
    if node.everything or not isinstance(node.range, tree.Compare):
        return None, False
    whole = blocks is None or node.ending  # what is compared is a token: itself, or a block's last
    stride, size = (ONE, ONE) if whole or blocks is None else (blocks.stride, blocks.size)
    bounds = list(_bounds(inner, node.range, variable))
    window = None
    for bound in bounds:
        if blocks is None and bound.read == -1 and bound.reader == 1 and bound.rest.is_integer:
            window = 1 - bound.rest
    slack = [
        -bound.rest / bound.reader - (size - 1)
        for bound in bounds
        if bound.reader.is_negative and sympy.simplify(bound.read + stride * bound.reader) == 0
    ]
    return window, any(each.is_nonnegative for each in slack)


def reads_past_alone(inner: Scope, node: tree.Attend, variable: str) -> bool:
    """Whether every token read comes before the reader, whatever the sizes."""
    if node.everything or node.ending or not isinstance(node.range, tree.Compare):
        return False
    return any(
        bound.read == 1 and bound.reader == -1 and (bound.rest - 1).is_nonnegative
        for bound in _bounds(inner, node.range, variable)
    )


def bounds_of(inner: Scope, node: tree.Attend, variable: str) -> list[Linear]:
    """The forms of both positions that are at most 0 of every pair that is read."""
    return [*_bounds(inner, node.range, variable)] if isinstance(node.range, tree.Compare) else []


def _bounds(inner: Scope, range: tree.Compare, variable: str) -> Iterator[Linear]:
    """The forms that are at most 0 by the comparisons of a chain."""
    for left, op, right in zip(range.terms, range.ops, range.terms[1:], strict=False):
        one, other = (_linear(inner, term, variable) for term in (left, right))
        if one is None or other is None:
            continue
        difference = one + other.times(-ONE)
        for sign, words in ((ONE, ("<", "<=", "==")), (-ONE, (">", ">=", "=="))):
            if op in words:
                bound = difference.times(sign)
                strict = op in ("<", ">") and bool(bound.rest.is_integer)
                yield bound + Linear(ZERO, ZERO, ONE) if strict else bound


def _linear(inner: Scope, node: tree.Expr, variable: str) -> Linear | None:
    """An expression of the two positions, if it is linear in them."""
    if isinstance(node, tree.Name) and node.id == variable:
        return Linear(ONE, ZERO, ZERO)
    if isinstance(node, tree.Name) and node.id == "t":
        return Linear(ZERO, ONE, ZERO)
    if isinstance(node, tree.Unary) and node.op == "-":
        value = _linear(inner, node.arg, variable)
        return value.times(-ONE) if value else None
    if isinstance(node, tree.Binary) and node.op in ("+", "-", "*"):
        return _combined(inner, node, variable)
    value = inner.evaluate(node)
    return Linear(ZERO, ZERO, whole(inner, value)) if isinstance(value, sympy.Expr) else None


def _combined(inner: Scope, node: tree.Binary, variable: str) -> Linear | None:
    """A sum or difference, or a product with a number."""
    left, right = (_linear(inner, part, variable) for part in (node.left, node.right))
    if left is None or right is None:
        return None
    if node.op != "*":
        return left + (right if node.op == "+" else right.times(-ONE))
    for one, other in ((left, right), (right, left)):
        if one.read == one.reader == 0:
            return other.times(one.rest)
    return None
