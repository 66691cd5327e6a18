"""Symbolic sizes: an axis has a name and a size, and the size is a sympy expression.

Names decide whether two axes are the same, sizes only how long they are: two axes of equal size and
different names are never joined by accident. `K'` is another axis of the size of `K`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import sympy

Kind = Literal["batch", "stream", "dim"]


@dataclass(frozen=True)
class Axis:
    """One named axis. `kind` is "batch" (implicit), "stream" (positions of a sequence) or "dim"."""

    name: str
    size: sympy.Expr
    kind: Kind = "dim"

    @property
    def base(self) -> str:
        """The name without primes: `K` of `K'`."""
        return self.name.rstrip("'")

    def renamed(self, name: str) -> Axis:
        """An axis of the same size and kind under another name."""
        return Axis(name, self.size, self.kind)

    def __str__(self) -> str:
        return self.name


def size_symbol(name: str) -> sympy.Symbol:
    """The symbol of a size: an integer that is not negative (`Q = 0` switches a part off)."""
    return sympy.Symbol(name, integer=True, nonnegative=True)


def number_symbol(name: str) -> sympy.Symbol:
    """The symbol of a real-valued option such as `eps` or `base`."""
    return sympy.Symbol(name, real=True)


BATCH = Axis("batch", size_symbol("batch"), "batch")
TIME = Axis("t", size_symbol("T"), "stream")


T_SEEN = size_symbol("T_seen")
"""How many tokens there have been in all: T, and those before it when a sequence is continued."""


def stream(name: str, size: sympy.Expr | None = None) -> Axis:
    """A sequence axis other than the layer's own time, e.g. `m` of another sequence."""
    return Axis(name, size_symbol(f"T_{name}") if size is None else size, "stream")


def exact(text: str) -> sympy.Expr:
    """The exact value of a number as written: `1e-6` is 1/1000000, never a binary fraction."""
    return sympy.Rational(text)


def at(expr: Any, sizes: Mapping[str, Any]) -> Any:
    """An expression or condition with numbers or expressions put in for its symbols, by name."""
    return expr.subs({s: sizes[str(s)] for s in expr.free_symbols if str(s) in sizes})


def axes_text(axes: tuple[Axis, ...]) -> str:
    """`[H, K]`: the dims as a spec writes them, batch and time left out."""
    return "[" + ", ".join(axis.name for axis in axes if axis.kind == "dim") + "]"
