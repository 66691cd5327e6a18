"""Intervals of functions of one number and of two: as narrow as the function's values at the ends,
open where an end is not reached, and never closed by rounding."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch

from archc.functions.definitions import FUNCTIONS as DEFINED
from archc.functions.interval import Interval
from archc.ir.meaning_ops import FUNCTIONS as MEANING

FUNCTIONS = {name: fn.range for name, fn in DEFINED.items()}
RISING = ("exp", "sigmoid", "logsigmoid", "softplus", "tanh", "erf", "sqrt", "log")
ENDS = (0.001, 0.5, 1.0, 2.0, 5.0)
INF = math.inf


@pytest.mark.parametrize("fn", RISING)
def test_the_ends_are_the_values_there(fn: str) -> None:
    ends = ENDS if fn in ("sqrt", "log") else (-5.0, -2.0, -0.5, 0.0, *ENDS)
    for low, high in [*pairwise(ends), (ends[0], ends[-1]), (1.0, 1.0)]:
        found = FUNCTIONS[fn](Interval(low, high))
        wanted = [float(MEANING[fn](torch.tensor(x, dtype=torch.float64))) for x in (low, high)]
        assert [found.low, found.high] == pytest.approx(wanted, rel=1e-14, abs=1e-300)
        assert not found.open_low and not found.open_high
        for first, last in ((True, False), (False, True)):
            same = FUNCTIONS[fn](Interval(low, high, first, last))
            assert low == high or (same.open_low, same.open_high) == (first, last)


@pytest.mark.parametrize(
    ("fn", "low", "high"),
    [("exp", 0, INF), ("sigmoid", 0, 1), ("softplus", 0, INF), ("tanh", -1, 1), ("erf", -1, 1),
     ("logsigmoid", -INF, 0)],
)  # fmt: skip
def test_a_limit_is_reached_at_infinity_alone(fn: str, low: float, high: float) -> None:
    """What has come to a limit by rounding is open there, and its other end is moved off."""
    assert FUNCTIONS[fn](Interval(-INF, INF)) == Interval(low, high)
    far = FUNCTIONS[fn](Interval(-3000.0, -2000.0))
    if low != -INF:
        assert far == Interval(low, math.nextafter(low, high), True, False)
    near = FUNCTIONS[fn](Interval(2000.0, 3000.0))
    if high != INF or fn == "exp":
        assert near == Interval(math.nextafter(high, low), high, False, True)
    below = FUNCTIONS[fn](Interval(-INF, -2000.0))
    if low != -INF:
        assert (below.low, below.open_low) == (low, False) and low < below.high < high
    above = FUNCTIONS[fn](Interval(2000.0, INF))
    if high != INF:
        assert (above.high, above.open_high) == (high, False) and low < above.low < high


@pytest.mark.parametrize("fn", [name for name, fn in DEFINED.items() if fn.arity == 1])
def test_ranges_have_the_values_of_arguments_without_a_bound(fn: str) -> None:
    """Of every function there is: a formula that is NaN at infinity is no reason to fail."""
    for low, high in ((-INF, INF), (-INF, -0.5), (0.5, INF), (-3.0, INF)):
        found = FUNCTIONS[fn](Interval(low, high))
        for x in (-1e3, -2.0, 0.75, 2.0, 1e3):
            y = float(MEANING[fn](torch.tensor(x, dtype=torch.float64)))
            assert not low <= x <= high or math.isnan(y) or found.low <= y <= found.high, (low, x)


def test_roots_and_logarithms_of_what_may_be_0() -> None:
    assert FUNCTIONS["log"](Interval(0, 1)) == Interval(-INF, 0)
    assert FUNCTIONS["sqrt"](Interval(0, 4)) == Interval(0, 2)
    assert FUNCTIONS["rsqrt"](Interval(0, 4)) == Interval(0.5, INF)
    assert FUNCTIONS["rsqrt"](Interval(0.25, 4, True, False)) == Interval(0.5, 2, False, True)
    assert FUNCTIONS["rsqrt"](Interval(4, INF)) == Interval(0, 0.5)
    anything = Interval(-INF, INF)
    for fn in ("log", "sqrt", "rsqrt"):
        assert FUNCTIONS[fn](Interval(-2, -1)) == anything


def test_functions_that_jump_and_choose() -> None:
    one = Interval(-1.5, 2.5, True, True)
    assert FUNCTIONS["floor"](one) == Interval(-2, 2)
    assert FUNCTIONS["floor"](Interval(-INF, INF, True, True)) == Interval(-INF, INF, True, True)
    signs = {(-2, -1): (-1, -1), (-1, 0): (-1, 0), (0, 0): (0, 0), (0, 3): (0, 1), (1, 2): (1, 1),
             (-1, 1): (-1, 1)}  # fmt: skip
    for given, wanted in signs.items():
        assert FUNCTIONS["sign"](Interval(*given)) == Interval(*wanted)
    a, b = Interval(0, 3, True, False), Interval(1, 2, False, True)
    assert FUNCTIONS["max"](a, b) == FUNCTIONS["max"](b, a) == Interval(1, 3)
    assert FUNCTIONS["min"](a, b) == FUNCTIONS["min"](b, a) == Interval(0, 2, True, True)
    assert FUNCTIONS["where"](Interval(0, 1), a, b) == Interval(0, 3, True, False)
    assert FUNCTIONS["relu"](Interval(-1, 2)) == Interval(0, 2)
    assert FUNCTIONS["mod"](one, Interval(2, 3)) == Interval(0, 3, False, True)
    assert FUNCTIONS["mod"](one, Interval(-3, -2)) == Interval(-3, 0, True, False)
    assert FUNCTIONS["mod"](one, Interval(-1, 2)) == Interval(-INF, INF)
    for fn in ("sin", "cos"):
        assert FUNCTIONS[fn](one) == Interval(-1, 1)
    assert FUNCTIONS["lt"](a, b) == FUNCTIONS["not"](a) == Interval(0, 1)
