"""A choice between ways to compute the same, with what each of them costs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import sympy

from archc.dims import Axis, in_words
from archc.ir import layer as ir

VALUE_BYTES = 2
"""A number is a bfloat16."""

SAMPLES = (16, 1024)
"""The numbers tried for a size without a default; a choice must be right for each of them."""

MOST_FREE = 4
"""Sizes without a default that are varied one by one; where there are more, all at once."""

Point = dict[Any, Any]
"""A number for every size and option of a layer."""


@dataclass(frozen=True)
class Option:
    """One way: operations, bytes read and written, and numbers kept for each token of the past.

    In the layer's sizes, `T` (tokens that are new) and `T_seen` (those and the ones before).
    """

    name: str
    flops: sympy.Expr
    bytes: sympy.Expr
    cache: sympy.Expr = sympy.S.Zero


@dataclass(frozen=True)
class Decision:
    """One decision: its place, the ways it was made between, and the way taken; `condition` says in
    words when."""

    what: str
    options: tuple[Option, ...]
    chosen: str
    condition: str
    where: str = ""

    def lines(self) -> Iterator[str]:
        """The decision as text: what, a block for each way, and which is taken when."""
        yield f"{self.what}  # {self.where}" if self.where else self.what
        for option in self.options:
            mark = "*" if option.name in self.chosen.split(" | ") else " "
            yield f"  {mark} {option.name}"
            yield f"      flops  {in_words(option.flops)}"
            yield f"      bytes  {in_words(option.bytes)}"
            if option.cache != 0:
                yield f"      cache  {in_words(option.cache)} numbers a token"
        yield f"    {in_words(self.condition)}"


def defaults_of(args: Sequence[ir.Arg]) -> dict[Any, Any]:
    """The defaults of sizes and options, in those that have none."""
    defaults: dict[Any, Any] = {}
    for arg in args:
        if arg.symbol is not None and arg.default is not None:
            value = arg.default
            exact = sympy.Integer(value) if isinstance(value, int) else value
            defaults[arg.symbol] = exact.subs(defaults)
    return defaults


def points(args: Sequence[ir.Arg], exprs: Iterable[sympy.Expr]) -> list[Point]:
    """Numbers for the symbols of expressions: defaults, and samples for what has none."""
    defaults = defaults_of(args)
    used = {symbol for expr in exprs for symbol in expr.subs(defaults).free_symbols}
    free = sorted(used, key=str)
    if len(free) > MOST_FREE:
        choices = [(size,) * len(free) for size in SAMPLES]
    else:
        choices = list(product(SAMPLES, repeat=len(free)))
    found: list[Point] = []
    for choice in choices:
        given = dict(zip(free, map(sympy.Integer, choice), strict=True))
        found.append({**given, **{s: value.subs(given) for s, value in defaults.items()}})
    return found


def at(expr: sympy.Expr, point: Point) -> float:
    """An expression at a point."""
    return float(expr.subs(point))


def size(axes: Iterable[Axis]) -> sympy.Expr:
    """Elements of a tensor, for one sequence."""
    return sympy.Mul(*(axis.size for axis in axes if axis.kind != "batch"))
