"""Sizes and constants as Python text: evaluated, they are what sympy says."""

from __future__ import annotations

import math

import pytest
import sympy
from archc.backends.expression import ADD, MUL, Text, binary, negative, number, power, whole

from archc.dims import number_symbol, size_symbol

d, H, K = (size_symbol(name) for name in ("d", "H", "K"))
base = number_symbol("base")
NAMES = {"d": "d", "H": "H", "K": "K", "base": "base"}
SIZES = {d: 48, H: 4, K: 5, base: sympy.Rational(5, 2)}
NUMBERS = {"d": 48, "H": 4, "K": 5, "base": 2.5, "math": math, "max": max, "min": min, "abs": abs}

EXPRESSIONS = [
    d / H, 1 / sympy.sqrt(K), 1 / sympy.sqrt(H * K), sympy.sqrt(H * K) / 2, -d / H, -2 / K,
    d - K * H + 1,
    256 * sympy.ceiling(d / 96), sympy.floor(d / 7), sympy.Rational("1e-6"), sympy.Rational(1, 3),
    -sympy.Rational(1, 2), sympy.Max(0, K - 9), sympy.Min(K, H), sympy.Mod(d, K), base ** (-2 / K),
    (d + H) ** 2, -(d + H), sympy.exp(-K), sympy.log(base), sympy.pi / 2, 3 * (K - 1) / (2 * H),
    sympy.Rational(314159, 100000), sympy.Abs(H - K), K**-2,
]  # fmt: skip


def evaluated(text: str) -> float:
    """The value of an expression that is made of numbers, names and functions alone."""
    return eval(text, {"__builtins__": {}}, NUMBERS)


@pytest.mark.parametrize("expr", EXPRESSIONS, ids=str)
def test_number_is_the_value(expr: sympy.Expr):
    expected = float(expr.subs(SIZES))
    assert evaluated(number(expr, NAMES).text) == pytest.approx(expected, rel=1e-14)


@pytest.mark.parametrize("text", ["0.1", "1e-6", "2.5e-9", "1e-12", "1 / 3"])
def test_numbers_are_written_as_one_writes_them(text: str):
    assert number(sympy.Rational(text.replace(" ", "")), {}).text == text


@pytest.mark.parametrize(
    "expr",
    [
        d / H,
        (d - H) / 4,
        3 * d / (H * 2),
        d * K,
        96 * sympy.ceiling(d / 96),
        sympy.floor(d * base / 7),
    ],
)
def test_whole_stays_an_integer(expr: sympy.Expr):
    value = evaluated(whole(expr, NAMES).text)
    assert isinstance(value, int)
    assert value == expr.subs(SIZES)


@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        (sympy.Eq(H * 12, d), True),
        (sympy.Ne(K, 5), False),
        (sympy.Ge(K, 6), False),
        (sympy.And(K > 1, d > 1), True),
        (sympy.Or(K > 9, d < 1), False),
        (sympy.Not(sympy.Eq(sympy.Mod(d, H), 0)), False),
    ],
)
def test_conditions(condition: sympy.Basic, holds: bool):
    assert evaluated(number(condition, NAMES).text) is holds


def test_brackets_stand_where_the_grouping_needs_them():
    a, b, c = Text("a"), Text("b"), Text("c")
    total = binary("+", ADD, a, b)
    assert binary("*", MUL, total, c).text == "(a + b) * c"
    assert binary("+", ADD, c, total).text == "c + (a + b)"
    assert binary("-", ADD, total, c).text == "a + b - c"
    assert negative(total).text == "-(a + b)"
    assert power(negative(a), b).text == "(-a) ** b"
    assert power(a, negative(b)).text == "a ** (-b)"


def test_a_symbol_without_a_name_is_an_error():
    with pytest.raises(KeyError):
        number(d / H, {"d": "d"})
