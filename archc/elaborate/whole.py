"""Whole numbers: an expression in sizes that is whole because of what the spec requires."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import sympy

from archc.dims import apply
from archc.elaborate.mentions import walk
from archc.elaborate.scope import Scope
from archc.ir.typing import is_whole
from archc.syntax import tree

COUNTED = (
    "`a // b` of whole numbers is one, and so is a count: `sum[n](where(index[n] < z, 1, 0))` is a"
    " real z rounded up, from 0 to n"
)
"""The help on whole numbers where a real one is given; `floor` leaves it real."""

ROUNDS = 3
"""How often one condition may be used after another."""


def whole(scope: Scope, value: sympy.Expr) -> sympy.Expr:
    """The number, in a form that is plainly whole if it is whole by a `require` of the layer: with
    `require K % 2 == 0`, `K / 2` is `floor(K / 2)`."""
    if value.is_number or is_whole(value) or not value.is_rational_function():
        return value
    conditions = [each.condition for each in scope.context.requirements]
    return sympy.floor(value) if _follows(value, [*_facts(conditions)]) else value


def hold_whole(scope: Scope, parameter: tree.Parameter, value: Any, node: tree.Expr) -> Any:
    """A size of a layer in place, which must come out whole as that of any other; one that is made
    of real numbers (a share of a size) is rounded, as their product is."""
    if not isinstance(value, sympy.Expr) or is_whole(whole(scope, value)):
        return value
    above, below = sympy.fraction(sympy.together(value))
    text = f"{parameter.name} = {value} is a whole number"
    scope.hold(apply(sympy.Eq, sympy.Mod(above, below), 0), text, node.span, "applied here")
    real = any(not symbol.is_integer for symbol in value.free_symbols)
    return sympy.floor(value + sympy.Rational(1, 2)) if real else value


def made_whole(scope: Scope, node: tree.Expr) -> list[str]:
    """How an expression becomes whole: a quotient of sizes by what is required, a real number by
    counting."""
    for part in walk(node):
        if isinstance(part, tree.Binary) and part.op == "/":
            value = scope.evaluate(part)
            if isinstance(value, sympy.Expr) and not is_whole(whole(scope, value)):
                above, below = part.left.span.text, part.right.span.text
                rule = f"`require {above} % {below} == 0`"
                return [f"`{part.span.text}` is whole where the layer says so: {rule}"]
    return [COUNTED]


def _facts(conditions: Iterable[sympy.Basic]) -> Iterator[tuple[Any, Any]]:
    """The sizes that conditions fix: (K, 2 j) for `K % 2 == 0`, (d, H K) for `d == H * K`."""
    for condition in conditions:
        if isinstance(condition, sympy.And):
            yield from _facts(condition.args)
        if not isinstance(condition, sympy.Eq):
            continue
        for left, right in ((condition.lhs, condition.rhs), (condition.rhs, condition.lhs)):
            if isinstance(left, sympy.Mod) and right == 0:
                number, step = left.args
                yield number, step * sympy.Dummy("j", integer=True, nonnegative=True)
            elif left.is_Symbol and not right.has(left, sympy.Mod):
                yield left, right


def _follows(value: sympy.Expr, facts: list[tuple[Any, Any]]) -> bool:
    """Whether a number is whole once sizes are written as the facts say."""
    found = {value}
    for _ in range(ROUNDS):
        found |= {_put(each, *fact) for each in found for fact in facts}
        if any(each.is_integer for each in found):
            return True
    return False


def _put(value: sympy.Expr, number: sympy.Expr, same: sympy.Expr) -> sympy.Expr:
    """A number with another way to write a size, or a product of sizes, put in."""
    if number.is_Symbol:
        return sympy.cancel(value.xreplace({number: same}))
    if value.free_symbols >= number.free_symbols:
        return sympy.cancel(value / number * same)
    return value
