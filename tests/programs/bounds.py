"""Bounds on the values of terms, and terms of functions of each element."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from tests.programs.terms import Term

TAME = 40.0
"""The largest bound of a term that is used as it is."""
Bounds = tuple[float, float]


def _sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-min(max(x, -50), 50)))


def _product(a: Bounds, b: Bounds) -> Bounds:
    found = [x * y for x in a for y in b]
    return min(found), max(found)


def _abs(a: Bounds) -> Bounds:
    return (0.0 if a[0] <= 0 <= a[1] else min(map(abs, a))), max(map(abs, a))


UNIT = ("tanh", "sign", "sin", "cos", "erf")
BOUNDS: dict[str, Callable[..., Bounds]] = {
    "add": lambda a, b: (a[0] + b[0], a[1] + b[1]),
    "sub": lambda a, b: (a[0] - b[1], a[1] - b[0]),
    "mul": _product,
    "neg": lambda a: (-a[1], -a[0]),
    "max": lambda a, b: (max(a[0], b[0]), max(a[1], b[1])),
    "min": lambda a, b: (min(a[0], b[0]), min(a[1], b[1])),
    "where": lambda c, a, b: (min(a[0], b[0]), max(a[1], b[1])),
    "choice": lambda a, b: (min(a[0], b[0]), max(a[1], b[1])),
    "abs": _abs,
    "exp": lambda a: (math.exp(a[0]), math.exp(min(a[1], 50))),
    "exp2": lambda a: (2.0 ** a[0], 2.0 ** min(a[1], 50)),
    "sigmoid": lambda a: (_sigmoid(a[0]), _sigmoid(a[1])),
    "logsigmoid": lambda a: (min(a[0], 0) - 0.7, 0.0),
    "softplus": lambda a: (0.0, max(a[1], 0) + 0.7),
    **dict.fromkeys(UNIT, lambda a: (-1.0, 1.0)),
    "detach": lambda a: a,
    "relu": lambda a: (0.0, max(a[1], 0.0)),
    "squared_relu": lambda a: (0.0, max(a[1], 0.0) ** 2),
    **dict.fromkeys(("silu", "gelu", "gelu_tanh", "elu"), lambda a: (-1.0, max(a[1], 0.0))),
    "floor": lambda a: (a[0] - 1, a[1]),
    "sqrt": lambda a: (math.sqrt(max(a[0], 0)), math.sqrt(max(a[1], 0))),
    "rsqrt": lambda a: (1 / math.sqrt(a[1]), 1 / math.sqrt(a[0])),
    "log": lambda a: (math.log(a[0]), math.log(a[1])),
}


def interval(op: str, args: Sequence[Term]) -> Bounds:
    """Bounds on the value of a function of each element."""
    return BOUNDS[op](*((arg.low, arg.high) for arg in args)) if op in BOUNDS else (-TAME, TAME)


def ordered(dims: frozenset[str]) -> tuple[str, ...]:
    """Dims in an order that is the same in every run."""
    return tuple(sorted(dims))


def number(text: str) -> Term:
    value = -math.inf if text == "-inf" else float(text)
    return Term("number", (), (text,), (), value, value, text.isdigit())


def elementwise(op: str, *args: Term) -> Term:
    """A function of each element, with its dims and bounds."""
    widest = sorted(args, key=lambda arg: -len(arg.dims))
    dims = tuple(dict.fromkeys(dim for arg in widest for dim in arg.dims))
    low, high = interval(op, args)
    whole_ops = ("neg", "abs", "add", "sub", "mul", "mod", "floordiv", "max", "min", "where")
    whole = op in whole_ops and all(a.whole for a in (args[1:] if op == "where" else args))
    return Term(op, args, (), dims, low, high, whole)
