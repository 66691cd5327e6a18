"""Every elementwise function of the language, defined once: `FUNCTIONS`.

A definition has what passes ask for. How a function is written stands with what writes it: in
`archc/ir/meaning_ops.py`, `backends/eager/elementwise.py` and `backends/triton/elementwise.py`,
whose tables are complete: a function that one of them lacks is an error as soon as it is imported.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

import sympy

from archc.functions import interval_rules as ranges
from archc.functions.interval import (
    ANY,
    POSITIVE,
    ZERO,
    Interval,
    absolute,
    add,
    div,
    hull,
    mul,
    neg,
    power,
    sub,
)

A, B, Y = sympy.symbols("a b y", real=True)
"""The operands of a function and its result, in slopes."""

SIGMOID = sympy.Function("sigmoid")
"""The function itself in slopes, which sympy would write out."""


class Slopes(Enum):
    """The source of derivatives that are not expressions: sympy derives the formula, nothing passes
    (constant but for jumps), or a rule of nodes (`archc/autodiff/elementwise.py`)."""

    DERIVED = "derived"
    FLAT = "flat"
    RULE = "rule"


class Kind(Enum):
    """The kind of a function's values: reals, integers of integers, or truths."""

    REAL = "real"
    WHOLE = "whole"
    TRUTH = "truth"


@dataclass(frozen=True)
class Function:
    """An elementwise function.

    `formula` is what it is, in sympy; `range` what it makes of intervals. `torch` and `number` say
    where torch and Python have it under one name (`erf`, `math.erf`); without, a spelling stands in
    the tables of those who write it. `symbol`: what is written between operands (or before one) in
    place of a name. `exact`: numbers of a spec are given the formula's exact value.

    `slopes` by each operand, in `A`, `B` and the result `Y` where that is cheaper or stays finite
    further out. `steep`: the operand by which the slope may be infinite. `unbounded`: it may be
    infinite or undefined where its operands are finite. `domain`: where it is a number, if that is
    not everywhere. `zero_at_zero`: it is 0 where all of its operands are. `special` counts the
    exponentials, logarithms and roots that it costs.
    """

    name: str
    formula: Callable[..., Any]
    range: Callable[..., Interval]
    arity: int = 1
    torch: str = ""
    number: str = ""
    symbol: str = ""
    kind: Kind = Kind.REAL
    exact: bool = False
    slopes: Slopes | tuple[sympy.Expr, ...] = Slopes.DERIVED
    steep: int | None = None
    unbounded: bool = False
    domain: Interval = ANY
    zero_at_zero: bool = False
    commutes: bool = False
    special: int = 0

    @property
    def called(self) -> bool:
        """Whether specs call it by its name."""
        return not self.symbol and self.name != "real"


def _real(x: Any) -> Any:
    """A truth as 0 or 1."""
    return x if isinstance(x, sympy.Expr) else sympy.Piecewise((1, x), (0, True))


def _choice(c: Any, x: Any, y: Any) -> Any:
    return sympy.Piecewise((x, c), (y, True))


def _truth(*_: Interval) -> Interval:
    return Interval(0, 1)


def _relation(name: str, symbol: str, formula: Callable[..., Any], commutes: bool) -> Function:
    """A function of two values that is true or false."""
    torch = {"and": "logical_and", "or": "logical_or"}.get(name, name)
    return Function(
        name, formula, _truth, 2, torch=torch, symbol=symbol, kind=Kind.TRUTH, slopes=Slopes.FLAT,
        commutes=commutes,
    )  # fmt: skip


_OF_ONE = (
    Function("neg", lambda x: -x, neg, torch="neg", symbol="-", kind=Kind.WHOLE,
             zero_at_zero=True),
    Function("exp", sympy.exp, ranges.EXP, torch="exp", number="math.exp", exact=True,
             slopes=(Y,), steep=0, unbounded=True, special=1),
    Function("exp2", lambda x: 2**x, ranges.rising(ranges.exp2, 0, math.inf), torch="exp2",
             number="math.exp2", slopes=(Y * sympy.log(2),), steep=0, unbounded=True, special=1),
    Function("log", sympy.log, ranges.logarithm, torch="log", number="math.log", exact=True,
             steep=0, unbounded=True, domain=POSITIVE, special=1),
    Function("sqrt", sympy.sqrt, ranges.square_root, torch="sqrt", number="math.sqrt", exact=True,
             slopes=(1 / (2 * Y),), steep=0, unbounded=True, domain=Interval(0), special=1),
    Function("rsqrt", lambda x: 1 / sympy.sqrt(x), ranges.inverse_root, torch="rsqrt", exact=True,
             slopes=(-(Y**3) / 2,), steep=0, unbounded=True, domain=POSITIVE, special=1),
    Function("abs", sympy.Abs, absolute, torch="abs", number="abs", kind=Kind.WHOLE, exact=True,
             slopes=Slopes.RULE, zero_at_zero=True),
    Function("sign", sympy.sign, ranges.sign, torch="sign", kind=Kind.WHOLE, slopes=Slopes.FLAT,
             zero_at_zero=True),
    Function("floor", sympy.floor, ranges.floor, torch="floor", number="math.floor", exact=True,
             slopes=Slopes.FLAT, zero_at_zero=True),
    Function("sin", sympy.sin, ranges.wave, torch="sin", number="math.sin", exact=True,
             zero_at_zero=True, special=1),
    Function("cos", sympy.cos, ranges.wave, torch="cos", number="math.cos", exact=True, special=1),
    Function("erf", sympy.erf, ranges.rising(math.erf, -1, 1), torch="erf", number="math.erf",
             zero_at_zero=True, special=1),
    Function("sigmoid", lambda x: 1 / (1 + sympy.exp(-x)), ranges.rising(ranges.sigmoid, 0, 1),
             torch="sigmoid", slopes=(Y * (1 - Y),), special=2),
    Function("logsigmoid", lambda x: -sympy.log(1 + sympy.exp(-x)),
             ranges.rising(lambda x: -ranges.softplus(-x), -math.inf, 0),
             torch="nn.functional.logsigmoid", slopes=(SIGMOID(-A),), special=2),
    Function("softplus", lambda x: sympy.log(1 + sympy.exp(x)),
             ranges.rising(ranges.softplus, 0, math.inf), slopes=(SIGMOID(A),), special=2),
    Function("tanh", sympy.tanh, ranges.rising(math.tanh, -1, 1), torch="tanh",
             number="math.tanh", exact=True, slopes=(1 - Y**2,), zero_at_zero=True, special=2),
    Function("relu", lambda x: sympy.Max(x, 0), lambda a: ranges.largest(a, ZERO), torch="relu",
             slopes=Slopes.RULE, zero_at_zero=True),
    Function("detach", lambda x: x, lambda a: a, torch="detach", kind=Kind.WHOLE,
             slopes=Slopes.FLAT, zero_at_zero=True),
    Function("not", sympy.Not, _truth, torch="logical_not", symbol="not", kind=Kind.TRUTH,
             slopes=Slopes.FLAT),
    Function("real", _real, lambda a: a, number="float", zero_at_zero=True),
)  # fmt: skip

_OF_TWO = (
    Function("add", sympy.Add, add, 2, torch="add", symbol="+", kind=Kind.WHOLE, commutes=True,
             zero_at_zero=True),
    Function("sub", lambda x, y: x - y, sub, 2, torch="sub", symbol="-", kind=Kind.WHOLE,
             zero_at_zero=True),
    Function("mul", sympy.Mul, mul, 2, torch="mul", symbol="*", kind=Kind.WHOLE, commutes=True),
    Function("div", lambda x, y: x / y, div, 2, torch="div", symbol="/",
             slopes=(1 / B, -Y / B), steep=1, unbounded=True),
    Function("pow", sympy.Pow, power, 2, torch="pow", symbol="**", slopes=Slopes.RULE, steep=0,
             unbounded=True, special=2),
    Function("mod", sympy.Mod, ranges.modulo, 2, torch="remainder", symbol="%", kind=Kind.WHOLE,
             slopes=Slopes.RULE, unbounded=True),
    Function("floordiv", lambda x, y: sympy.floor(x / y), lambda a, b: ranges.floor(div(a, b)), 2,
             symbol="//", kind=Kind.WHOLE, slopes=Slopes.FLAT, unbounded=True),
    Function("max", sympy.Max, ranges.largest, 2, torch="maximum", number="max", kind=Kind.WHOLE,
             exact=True, slopes=Slopes.RULE, commutes=True),
    Function("min", sympy.Min, ranges.smallest, 2, torch="minimum", number="min", kind=Kind.WHOLE,
             exact=True, slopes=Slopes.RULE, commutes=True),
    _relation("eq", "==", sympy.Eq, True),
    _relation("ne", "!=", sympy.Ne, True),
    _relation("lt", "<", sympy.Lt, False),
    _relation("le", "<=", sympy.Le, False),
    _relation("gt", ">", sympy.Gt, False),
    _relation("ge", ">=", sympy.Ge, False),
    _relation("and", "and", sympy.And, True),
    _relation("or", "or", sympy.Or, True),
)  # fmt: skip

_OF_THREE = (
    Function("where", _choice, lambda c, a, b: hull(a, b), 3, torch="where", kind=Kind.WHOLE,
             slopes=Slopes.RULE),
)  # fmt: skip

FUNCTIONS: dict[str, Function] = {each.name: each for each in (*_OF_ONE, *_OF_TWO, *_OF_THREE)}
"""The functions by name, as `Elementwise` holds them. `real` turns an integer or bool into a real;
`detach(x)` is x, and no gradient passes;
`where(c, a, b)` chooses a where c holds, and a value that is not chosen never reaches the result or
a gradient, not even as NaN."""

HEADS: dict[Any, Function] = {
    each.formula: each for each in FUNCTIONS.values() if isinstance(each.formula, type)
}
"""Functions that sympy has as a class of its own, by that."""
