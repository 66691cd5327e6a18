"""Costs, sympy expressions in the sizes of a layer, as formulas."""

from __future__ import annotations

from typing import Any

import sympy

from archc.derivation.maths import (
    MINUS,
    NEGATIVE,
    PLUS,
    Fence,
    Fraction,
    Math,
    Number,
    Power,
    Root,
    Row,
    function,
    named,
    row,
)
from archc.dims import in_words, size_symbol
from archc.ir.chunk import CHUNK


def cost_math(expr: sympy.Expr) -> Math:
    """A cost with its common factors in front; the length of a chunk is C."""
    return _math(sympy.factor_terms(expr.subs(CHUNK, size_symbol(chunk_letter(expr)))))


def chunk_letter(*exprs: sympy.Expr) -> str:
    """The letter for the length of a chunk: C, or L where the layer has a size C."""
    names = {str(symbol) for expr in exprs for symbol in expr.free_symbols}
    return "L" if "C" in names else "C"


def _math(expr: sympy.Expr) -> Math:
    if isinstance(expr, sympy.Symbol):
        return named(in_words(expr))
    if isinstance(expr, sympy.Add):
        return _sum(expr)
    if isinstance(expr, sympy.Mul) or (isinstance(expr, sympy.Rational) and not expr.is_Integer):
        return _product(expr)
    if isinstance(expr, sympy.Pow) and expr.exp.is_negative:
        return Fraction(Number("1"), _math(1 / expr))
    if isinstance(expr, sympy.Pow) and expr.exp == sympy.Rational(1, 2):
        return Root(_math(expr.base))
    if isinstance(expr, sympy.Pow):
        return Power(_closed(expr.base), _math(expr.exp))
    if isinstance(expr, sympy.Function | sympy.Max | sympy.Min):
        return function(type(expr).__name__.lower(), *(_math(arg) for arg in _args(expr)))
    return Number(str(expr))


def _sum(expr: sympy.Add) -> Math:
    parts: list[Math] = []
    terms: list[Any] = list(expr.as_ordered_terms())
    for term in terms:
        negative = term.could_extract_minus_sign()
        parts += [MINUS if parts else NEGATIVE] if negative else [PLUS] if parts else []
        parts.append(_math(-term if negative else term))
    return row(*parts)


def _product(expr: sympy.Expr) -> Math:
    if expr.could_extract_minus_sign():
        return row(NEGATIVE, _math(-expr))
    parts = [factor.as_numer_denom() if not factor.is_Add else (factor, sympy.Integer(1))
             for factor in sympy.Mul.make_args(expr)]  # fmt: skip
    above, below = ([f for f in side if f != 1] for side in zip(*parts, strict=True))
    top = _factors(above) if above else Number("1")
    return Fraction(top, _factors(below)) if below else top


def _factors(factors: list[sympy.Expr]) -> Math:
    """Numbers first, sums last."""
    ordered = sorted(factors, key=lambda f: (not f.is_number, f.is_Add, str(f)))
    return row(*(_closed(factor) if len(ordered) > 1 else _math(factor) for factor in ordered))


def _closed(expr: sympy.Expr) -> Math:
    found = _math(expr)
    return Fence(found) if isinstance(expr, sympy.Add) and isinstance(found, Row) else found


def _args(expr: sympy.Expr) -> tuple[Any, ...]:
    """The arguments of a function."""
    return expr.args
