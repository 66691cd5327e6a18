"""Rules of elementwise functions on intervals; `definitions.py` says which function has which."""

from __future__ import annotations

import math
from collections.abc import Callable

from archc.functions.interval import (
    ANY,
    INFINITE,
    Interval,
    Number,
    hull,
    neg,
    root_domain,
)

# --- functions of one number -------------------------------------------------------------------


def rising(
    fn: Callable[[Number], float], low: float, high: float, reached: bool = False
) -> Callable[[Interval], Interval]:
    """A function that never falls, with values from `low` to `high`. These are reached at infinite
    arguments, which `fn` is not asked for, or if `reached` at others too; a rounded value that has
    come to one is moved off."""

    def at(x: Number) -> float:
        return low if x == -math.inf else high if x == math.inf else fn(x)

    def interval(a: Interval) -> Interval:
        bottom, top = at(a.low), at(a.high)
        off_low = bottom == low and a.low not in INFINITE and not reached
        off_high = top == high and a.high not in INFINITE and not reached
        if not reached and top == low and a.high != -math.inf:
            top = math.nextafter(low, high)
        if not reached and bottom == high and a.low != math.inf:
            bottom = math.nextafter(high, low)
        return Interval(bottom, top, a.open_low or off_low, a.open_high or off_high)

    return interval


def exp(x: Number) -> float:
    """e^x, infinite where it overflows."""
    try:
        return math.exp(x)
    except OverflowError:
        return math.inf


def exp2(x: Number) -> float:
    """2^x, infinite where it overflows."""
    try:
        return math.exp2(x)
    except OverflowError:
        return math.inf


def softplus(x: Number) -> float:
    """log(1 + e^x)."""
    return float(x) if x > 50 else math.log1p(exp(x))


def sigmoid(x: Number) -> float:
    """1 / (1 + e^-x)."""
    return 1 / (1 + exp(-x)) if x >= 0 else exp(x) / (1 + exp(x))


def log(x: Number) -> float:
    """Of 0 it is -oo."""
    return math.log(x) if x > 0 else -math.inf


def from_zero(range: Callable[[Interval], Interval]) -> Callable[[Interval], Interval]:
    """The range of a function that is no number below 0: of the part of an interval above it."""
    return lambda a: ANY if a.high < 0 else range(root_domain(a))


EXP = rising(exp, 0, math.inf)
logarithm = from_zero(rising(log, -math.inf, math.inf, reached=True))
square_root = from_zero(rising(math.sqrt, 0, math.inf, reached=True))


def inverse_root(a: Interval) -> Interval:
    """1 / sqrt(a), infinite at 0."""
    if a.high < 0:
        return ANY
    root = square_root(a)
    low, high = (math.inf if x == 0 else 1 / x for x in (root.high, root.low))
    return Interval(low, high, root.open_high, root.open_low)


def floor(a: Interval) -> Interval:
    """The whole number below; it may come to an end that is open."""
    low, high = (x if x in INFINITE else math.floor(x) for x in (a.low, a.high))
    return Interval(low, high, a.open_low and low == -math.inf, a.open_high and high == math.inf)


def sign(a: Interval) -> Interval:
    """-1, 0 or 1; also 0 at an open end 0, as what underflows there has this sign when computed."""
    low = 1 if a.low > 0 else 0 if a.low == 0 else -1
    return Interval(low, -1 if a.high < 0 else 0 if a.high == 0 else 1)


# --- choices and whole numbers -----------------------------------------------------------------


def largest(a: Interval, b: Interval) -> Interval:
    """The larger of two: at its low end only if both are."""
    low, open_low = max((a.low, a.open_low), (b.low, b.open_low))
    top = hull(a, b)
    return Interval(low, top.high, open_low, top.open_high)


def smallest(a: Interval, b: Interval) -> Interval:
    return neg(largest(neg(a), neg(b)))


def modulo(a: Interval, b: Interval) -> Interval:
    """The remainder has the sign of the divisor."""
    if b.low > 0:
        return Interval(0, b.high, False, True)
    return Interval(b.low, 0, True, False) if b.high < 0 else ANY


def wave(_: Interval) -> Interval:
    return Interval(-1, 1)
