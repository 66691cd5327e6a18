"""Intervals of numbers, their sums, products, quotients and powers.

An interval says where a value lies whenever it is a number: NaN is in none. Its ends are Python
numbers; fractions stay exact (1/10 + 9/10 is 1). Other ends are rounded as the computation itself
rounds, which keeps order, so that the facts hold for computed values too, up to the last digit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass
from fractions import Fraction
from itertools import product

Number = float | Fraction
"""An end: an int or a Fraction (exact), or a float, also an infinite one."""

MOST_DIGITS = 10**18
"""Fractions of larger numbers become floats."""


@dataclass(frozen=True)
class Interval:
    """Numbers from `low` to `high`. An open end is never reached: exp(x) of a finite x is above 0.

    "Never reached" is mathematics. In floating point exp(-1000) is 0 and sigmoid(50) is 1, so an
    open end says that a logarithm exists (log exp x = x), not that computing the value and then its
    logarithm is safe; a *bound* such as `low = 0.1` holds for computed values as well.
    """

    low: Number = -math.inf
    high: Number = math.inf
    open_low: bool = False
    open_high: bool = False

    def __post_init__(self) -> None:
        if not self.low <= self.high:
            raise ValueError(f"no interval: {self.low} to {self.high}")
        object.__setattr__(self, "low", self.low + 0)  # no -0
        object.__setattr__(self, "high", self.high + 0)
        if self.low == self.high:  # an end that rounding has moved onto the other
            object.__setattr__(self, "open_low", False)
            object.__setattr__(self, "open_high", False)

    def __contains__(self, value: float) -> bool:
        above = self.low < value or (value == self.low and not self.open_low)
        return above and (value < self.high or (value == self.high and not self.open_high))

    @property
    def positive(self) -> bool:
        """Whether every value is above 0."""
        return self.low > 0 or (self.low == 0 and self.open_low)

    @property
    def nonnegative(self) -> bool:
        """Whether no value is below 0."""
        return self.low >= 0

    @property
    def nonpositive(self) -> bool:
        """Whether no value is above 0."""
        return self.high <= 0

    def within(self, other: Interval) -> bool:
        """Whether every value of it lies in the other interval."""
        low = self.low > other.low or (self.low == other.low and self.open_low >= other.open_low)
        if self.high == other.high:
            return low and self.open_high >= other.open_high
        return low and self.high < other.high

    def __str__(self) -> str:
        left, right = "(" if self.open_low else "[", ")" if self.open_high else "]"
        return f"{left}{float(self.low):g}, {float(self.high):g}{right}"


ANY = Interval()
"""Any number, infinite ones too."""

FINITE = Interval(open_low=True, open_high=True)
"""Any finite number: an input, a parameter."""

POSITIVE = Interval(0, open_low=True, open_high=True)
UNIT = Interval(0, 1)
ZERO, ONE = Interval(0, 0), Interval(1, 1)


def point(value: Number) -> Interval:
    """One number."""
    return Interval(value, value)


def hull(*intervals: Interval) -> Interval:
    """The smallest interval with all of them in it."""
    low, open_low = min((i.low, i.open_low) for i in intervals)
    high, closed_high = max((i.high, not i.open_high) for i in intervals)
    return Interval(low, high, open_low, not closed_high)


def both(a: Interval, b: Interval) -> Interval:
    """The common part of two intervals; `a` where rounding has moved them apart."""
    low, open_low = max((i.low, i.open_low) for i in (a, b))
    high, closed_high = min((i.high, not i.open_high) for i in (a, b))
    return Interval(low, high, open_low, not closed_high) if low <= high else a


# --- sums, products, quotients, powers ---------------------------------------------------------

INFINITE = (-math.inf, math.inf)


def neg(a: Interval) -> Interval:
    return Interval(-a.high, -a.low, a.open_high, a.open_low)


def add(a: Interval, b: Interval) -> Interval:
    """Ends add up; a sum is infinite as soon as one of its terms is."""
    ends = []
    for x, x_open, y, y_open in (
        (a.low, a.open_low, b.low, b.open_low),
        (a.high, a.open_high, b.high, b.open_high),
    ):
        reached = (x in INFINITE and not x_open) or (y in INFINITE and not y_open)
        ends.append((_plain(x + y), (x_open or y_open) and not reached))
    (low, open_low), (high, open_high) = ends
    undefined = math.isnan(low) or math.isnan(high)  # oo - oo
    return ANY if undefined else Interval(low, high, open_low, open_high)


def sub(a: Interval, b: Interval) -> Interval:
    return add(a, neg(b))


def _plain(value: Number) -> Number:
    """The number, as a float where it has become a long fraction."""
    if isinstance(value, float):
        return value
    if max(abs(value.numerator), value.denominator) <= MOST_DIGITS:
        return value
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _at_ends(
    fn: Callable[[Number, Number], Number],
    a: Interval,
    b: Interval,
    settles: tuple[Collection[Number], Collection[Number]],
) -> Interval:
    """The range of a function that is monotone in each of its two numbers: its extremes are at
    ends. An end that is open makes the corner open, unless the other one settles the result alone,
    as a factor 0 does."""
    found = []
    left = ((a.low, a.open_low), (a.high, a.open_high))
    right = ((b.low, b.open_low), (b.high, b.open_high))
    for (x, x_open), (y, y_open) in product(left, right):
        settled = (x in settles[0] and not x_open) or (y in settles[1] and not y_open)
        found.append((_plain(fn(x, y)), (x_open or y_open) and not settled))
    low, open_low = min(found)
    high, closed = max((value, not is_open) for value, is_open in found)
    return Interval(low, high, open_low, not closed)


def mul(a: Interval, b: Interval) -> Interval:
    """0 times infinity counts as 0: towards that corner products are as small as one likes."""
    settles = (0, *INFINITE)
    return _at_ends(lambda x, y: 0 if x == 0 or y == 0 else x * y, a, b, (settles, settles))


def div(a: Interval, b: Interval) -> Interval:
    """Unbounded if the divisor may be 0: a computed 0 has either sign."""
    if 0 in b or (b.low < 0 < b.high):
        return ANY
    side = math.inf if b.low >= 0 else -math.inf

    def quotient(x: Number, y: Number) -> Number:
        if x == 0 or y in INFINITE:
            return 0
        return side * (1 if x > 0 else -1) if y == 0 else _ratio(x, y)

    return _at_ends(quotient, a, b, ((0, *INFINITE), INFINITE))


def _ratio(x: Number, y: Number) -> Number:
    """x / y, exactly where both are exact."""
    if isinstance(x, float) or isinstance(y, float):
        return x / y
    return Fraction(x) / Fraction(y)


def absolute(a: Interval) -> Interval:
    """|a|: 0 is reached where both signs are."""
    if a.low >= 0:
        return a
    if a.high <= 0:
        return neg(a)
    high, closed = max((-a.low, not a.open_low), (a.high, not a.open_high))
    return Interval(0, high, False, not closed)


def square(a: Interval) -> Interval:
    """x * x of one and the same x."""
    size = absolute(a)
    return mul(size, size)


def power(a: Interval, b: Interval) -> Interval:
    """a ** b. A negative base has a power where the exponent is whole."""
    if a.nonnegative:
        return _at_ends(_pow, a, b, ((0, 1, math.inf), (0, *INFINITE)))
    size = power(absolute(a), b)
    if b.low < b.high:
        return hull(neg(size), size)
    if b.low in INFINITE or b.low != int(b.low):
        return power(root_domain(a), b)
    if int(b.low) % 2 == 0:
        return size
    if b.low < 0:
        return div(ONE, power(a, neg(b)))
    low, high = (math.copysign(_pow(abs(x), b.low), x) for x in (a.low, a.high))
    return Interval(low, high, a.open_low, a.open_high)


def _pow(x: Number, y: Number) -> Number:
    if x == 0 and y < 0:
        return math.inf
    try:
        return math.pow(x, y)
    except OverflowError:
        return math.inf


def root_domain(a: Interval) -> Interval:
    """The part that is not negative: elsewhere a root or a logarithm is no number."""
    return both(a, Interval(0)) if a.high >= 0 else ANY


def times(count: Interval, a: Interval) -> Interval:
    """The sum of `count` numbers that each lie in a."""
    return mul(count, a)


def product_of(count: Interval, a: Interval) -> Interval:
    """The product of `count` numbers that each lie in a."""
    return power(a, count) if a.nonnegative else ANY
