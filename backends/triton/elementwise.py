"""Elementwise functions in Triton."""

from __future__ import annotations

from collections.abc import Callable

from archc.backends.triton.spelling import GLUON, TRITON

from archc.functions.definitions import FUNCTIONS
from archc.tables import complete

PRODUCTS = 8
"""The largest whole exponent for which a power is written as products."""


def _power(x: str, y: str) -> str:
    """`x * x * x` for an exponent that is a small whole number, `real_power(x, y)` else."""
    count = y.removesuffix(".0")
    if x.isidentifier() and count.isdigit() and 1 <= int(count) <= PRODUCTS:
        return " * ".join([x] * int(count))
    return f"real_power({x}, {y})"


SIGNS: dict[str, Callable[..., str]] = {
    "neg": lambda x: f"-{x}",
    "sigmoid": lambda x: f"logistic({x})",
    "logsigmoid": lambda x: f"-log_1_plus_exp(-{x})",
    "softplus": lambda x: f"log_1_plus_exp({x})",
    "tanh": lambda x: f"2.0 * logistic(2.0 * {x}) - 1.0",
    "detach": lambda x: x,
    "not": lambda x: f"{x} == 0",
    "add": lambda x, y: f"{x} + {y}",
    "sub": lambda x, y: f"{x} - {y}",
    "mul": lambda x, y: f"{x} * {y}",
    "div": lambda x, y: f"{x} / {y}",
    "pow": _power,
    "mod": lambda x, y: f"real_remainder({x}, {y})",
    "floordiv": lambda x, y: f"real_quotient({x}, {y})",
    "eq": lambda x, y: f"{x} == {y}",
    "ne": lambda x, y: f"{x} != {y}",
    "lt": lambda x, y: f"{x} < {y}",
    "le": lambda x, y: f"{x} <= {y}",
    "gt": lambda x, y: f"{x} > {y}",
    "ge": lambda x, y: f"{x} >= {y}",
    "and": lambda x, y: f"{x} & {y}",
    "or": lambda x, y: f"{x} | {y}",
}
"""Functions that are signs, or functions of the runtime."""


def texts(of: str) -> dict[str, Callable[..., str]]:
    """The text of each function of operands, where those of Triton are of this module. Operands are
    names or numbers, so that no brackets are needed."""
    return complete("`texts` of backends/triton/elementwise.py", SIGNS | {
        "exp": lambda x: f"{of}.exp({x})",
        "exp2": lambda x: f"{of}.exp2({x})",
        "log": lambda x: f"{of}.log({x})",
        "sqrt": lambda x: f"{of}.sqrt({x})",
        "rsqrt": lambda x: f"{of}.rsqrt({x})",
        "abs": lambda x: f"{of}.abs({x})",
        "sign": lambda x: f"{of}.where({x} > 0, 1.0, {of}.where({x} < 0, -1.0, 0.0))",
        "floor": lambda x: f"{of}.floor({x})",
        "sin": lambda x: f"{of}.sin({x})",
        "cos": lambda x: f"{of}.cos({x})",
        "erf": lambda x: f"{of}.erf({x})",
        "relu": lambda x: f"{of}.maximum({x}, 0.0)",
        "real": lambda x: f"({x}).to({of}.float32)",
        "max": lambda x, y: f"{of}.maximum({x}, {y})",
        "min": lambda x, y: f"{of}.minimum({x}, {y})",
        "where": lambda c, x, y: f"{of}.where({c}, {x}, {y})",
    }, FUNCTIONS)  # fmt: skip


TEXT, GLUON_TEXT = texts(TRITON), texts(GLUON)
