"""The interval of a constant of a layer, an expression in sizes and options."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from fractions import Fraction
from functools import reduce
from typing import Any

import sympy

from archc.functions.definitions import HEADS
from archc.functions.interval import (
    ANY,
    FINITE,
    MOST_DIGITS,
    Interval,
    Number,
    both,
    neg,
    point,
    power,
)
from archc.functions.interval_rules import floor
from archc.ir import layer as ir

COUNT = Interval(0, math.inf, False, True)
"""A size: 0 switches a part off."""


def number_interval(value: sympy.Basic, known: Mapping[str, Interval]) -> Interval:
    """The interval of an expression; `known` has those of symbols, by name. A size is not negative,
    an option may be any number; what has no value (`1/K` for K = 0) is left out."""
    if isinstance(value, sympy.Rational):
        return point(exact_fraction(value))
    if isinstance(value, sympy.Symbol):
        default = COUNT if value.is_integer and value.is_nonnegative else FINITE
        return known.get(value.name, default)
    if isinstance(value, sympy.Expr) and value.is_number:
        return point(float(value.evalf(30))) if value.is_extended_real else ANY
    if type(value) not in _RULES:
        return ANY
    return _RULES[type(value)](*(number_interval(arg, known) for arg in value.args))


def required(layer: ir.Layer) -> dict[int | str, Interval]:
    """The intervals that a layer's requirements (`require tau > 0`) give single sizes and
    options."""
    found: dict[int | str, Interval] = {}
    for requirement in layer.requirements:
        condition: Any = requirement.condition
        if type(condition) not in _LIMITS:
            continue
        turned = condition.reversed if condition.rhs.is_Symbol else condition
        symbol, number = turned.lhs, turned.rhs
        if symbol.is_Symbol and number.is_number:
            limit = _LIMITS[type(turned)](number_interval(number, {}).low)
            found[symbol.name] = both(found.get(symbol.name, number_interval(symbol, {})), limit)
    return found


_LIMITS: dict[type, Callable[[Number], Interval]] = {
    sympy.Gt: lambda number: Interval(number, math.inf, True, False),
    sympy.Ge: lambda number: Interval(number, math.inf),
    sympy.Lt: lambda number: Interval(-math.inf, number, False, True),
    sympy.Le: lambda number: Interval(-math.inf, number),
    sympy.Eq: point,
}
"""The interval of a number that is compared with another."""


def exact_fraction(value: sympy.Rational) -> Fraction | float:
    """A rational number, exactly where it is short."""
    short = max(abs(value.p), value.q) <= MOST_DIGITS
    return Fraction(int(value.p), int(value.q)) if short else float(value)


def _power(base: Interval, exponent: Interval) -> Interval:
    """A power of 0 that has no value is refused when the sizes are known."""
    if base.low == 0 and base.high > 0 and exponent.high < 0:
        base = replace(base, open_low=True)
    found = power(base, exponent)
    return both(found, FINITE) if base.within(FINITE) and exponent.within(FINITE) else found


def _several(fn: Callable[[Interval, Interval], Interval]) -> Callable[..., Interval]:
    return lambda *args: reduce(fn, args)


_RULES: dict[type, Callable[..., Interval]] = {
    **{head: fn.range if fn.arity == 1 else _several(fn.range) for head, fn in HEADS.items()},
    sympy.Pow: _power,
    sympy.ceiling: lambda a: neg(floor(neg(a))),
}
"""The interval rule of each class of sympy expression; any other class may be any number."""
