"""Elementwise functions in Triton; what each does to padding that is 0."""

from __future__ import annotations

from collections.abc import Callable

TEXT: dict[str, Callable[..., str]] = {
    "neg": lambda x: f"-{x}",
    "exp": lambda x: f"tl.exp({x})",
    "log": lambda x: f"tl.log({x})",
    "sqrt": lambda x: f"tl.sqrt({x})",
    "rsqrt": lambda x: f"tl.rsqrt({x})",
    "abs": lambda x: f"tl.abs({x})",
    "sign": lambda x: f"tl.where({x} > 0, 1.0, tl.where({x} < 0, -1.0, 0.0))",
    "floor": lambda x: f"tl.floor({x})",
    "sin": lambda x: f"tl.sin({x})",
    "cos": lambda x: f"tl.cos({x})",
    "erf": lambda x: f"tl.erf({x})",
    "sigmoid": lambda x: f"tl.sigmoid({x})",
    "logsigmoid": lambda x: f"tl.minimum({x}, 0.0) - tl.log(1.0 + tl.exp(-tl.abs({x})))",
    "softplus": lambda x: f"tl.maximum({x}, 0.0) + tl.log(1.0 + tl.exp(-tl.abs({x})))",
    "tanh": lambda x: f"2.0 * tl.sigmoid(2.0 * {x}) - 1.0",
    "relu": lambda x: f"tl.maximum({x}, 0.0)",
    "not": lambda x: f"{x} == 0",
    "real": lambda x: f"({x}).to(tl.float32)",
    "add": lambda x, y: f"{x} + {y}",
    "sub": lambda x, y: f"{x} - {y}",
    "mul": lambda x, y: f"{x} * {y}",
    "div": lambda x, y: f"{x} / {y}",
    "mod": lambda x, y: f"{x} % {y}",
    "floordiv": lambda x, y: f"{x} // {y}",
    "max": lambda x, y: f"tl.maximum({x}, {y})",
    "min": lambda x, y: f"tl.minimum({x}, {y})",
    "eq": lambda x, y: f"{x} == {y}",
    "ne": lambda x, y: f"{x} != {y}",
    "lt": lambda x, y: f"{x} < {y}",
    "le": lambda x, y: f"{x} <= {y}",
    "gt": lambda x, y: f"{x} > {y}",
    "ge": lambda x, y: f"{x} >= {y}",
    "and": lambda x, y: f"{x} & {y}",
    "or": lambda x, y: f"{x} | {y}",
    "where": lambda c, x, y: f"tl.where({c}, {x}, {y})",
}
"""Operands are names or numbers, so that no brackets are needed."""

ZERO_AT_ZERO = frozenset(
    ("neg", "abs", "sign", "floor", "sin", "erf", "tanh", "relu", "real", "add", "sub")
)
"""Functions that are 0 where all of their operands are."""

UNBOUNDED = frozenset(("div", "mod", "floordiv", "log", "rsqrt", "sqrt", "exp"))
"""Functions that may be infinite or undefined where their operands are finite."""
