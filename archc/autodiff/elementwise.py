"""Gradients of elementwise functions: slopes of their definitions, as nodes.

In expressions `A` and `B` are the operands, `Y` the result, `D` its cotangent. As in the meaning of
the layer IR a cotangent of 0 stays 0 even where a slope is infinite.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import sympy

from archc.autodiff.gradient_builder import Builder
from archc.functions.definitions import FUNCTIONS, HEADS, SIGMOID, A, B, Function, Slopes, Y
from archc.ir.graph import Node

D = sympy.Symbol("d", real=True)


def elementwise(b: Builder, node: Node, d: int) -> list[int | None]:
    """y = f(a, b), broadcast: da = d * df/da, summed over the axes that a lacks."""
    fn, operands = FUNCTIONS[node.op.fn], node.operands
    if fn.slopes is Slopes.FLAT:
        return [None] * len(operands)
    if fn.slopes is Slopes.RULE:
        found = CHOOSING[fn.name](b, node, d)
    else:
        found = [_slope(b, node, d, place) for place in range(len(operands))]
    return [
        None if cotangent is None else b.fit(cotangent, node.type, b.type(operand))
        for cotangent, operand in zip(found, operands, strict=True)
    ]


@lru_cache(maxsize=256)
def slopes(fn: Function) -> tuple[sympy.Expr, ...]:
    """The derivative of a function by each of its operands."""
    if isinstance(fn.slopes, tuple):
        return fn.slopes
    symbols = (A, B)[: fn.arity]
    return tuple(sympy.diff(fn.formula(*symbols), symbol) for symbol in symbols)


def _slope(b: Builder, node: Node, d: int, place: int) -> int | None:
    """d * slope, as nodes; 0 where d is."""
    if node.operands[place] not in b.active:
        return None
    fn = FUNCTIONS[node.op.fn]
    slope = slopes(fn)[place]
    known = {A: node.operands[0], B: node.operands[-1], Y: node.id, D: d}
    read = sorted(slope.free_symbols, key=str)
    constant = all(b.value(known[symbol]) is not None for symbol in read)
    product = express(b, D * slope, known)
    itself = (slope / Y).is_number  # infinite where the result is
    may_overflow = (itself or fn.name == "mul") and node.id in b.masked
    if constant or not ((fn.steep is not None and not itself) or may_overflow):
        return product
    return _unless_zero(b, d, product)


def _unless_zero(b: Builder, d: int, product: int) -> int:
    """A product with d, but 0 where d is 0: the other factor may be infinite there."""
    return b.fn("where", b.fn("eq", d, b.number(0)), b.number(0), product)


# --- expressions as nodes -----------------------------------------------------------------------


def express(b: Builder, expr: Any, known: Mapping[sympy.Symbol, int]) -> int:
    """A sympy expression as nodes; equal parts become one node."""
    if isinstance(expr, sympy.Symbol):
        return known[expr]
    if expr.is_number:
        return b.number(expr)
    if isinstance(expr, sympy.Add):
        return _sum(b, expr, known)
    if isinstance(expr, sympy.Mul | sympy.Pow):
        return _product(b, expr, known)
    if isinstance(expr, SIGMOID):
        return b.fn("sigmoid", express(b, expr.args[0], known))
    return b.fn(HEADS[expr.func].name, *(express(b, each, known) for each in expr.args))


def _sum(b: Builder, expr: Any, known: Mapping[sympy.Symbol, int]) -> int:
    """Terms, a number first, with differences for negative ones."""
    terms = sorted(expr.args, key=lambda term: (not term.is_number, str(term)))
    total = express(b, terms[0], known)
    for term in terms[1:]:
        negative = term.could_extract_minus_sign()
        value = express(b, -term if negative else term, known)
        total = b.fn("sub" if negative else "add", total, value)
    return total


def _product(b: Builder, expr: Any, known: Mapping[sympy.Symbol, int]) -> int:
    """Factors, then a number, then one quotient."""
    number, above, below = sympy.Integer(1), [], []
    for factor in sympy.Mul.make_args(expr):
        power, exponent = factor.as_base_exp() if not isinstance(factor, sympy.exp) else (factor, 1)
        if factor.is_number:
            number *= factor
        elif exponent in (-3, -2, -1, 1, 2, 3):
            (above if exponent > 0 else below).extend([power] * abs(int(exponent)))
        else:
            raise ValueError(f"no nodes for {expr}")
    # the cotangent comes last, so that what does not depend on it is one value
    above, below = (sorted(found, key=lambda f: (f == D, str(f))) for found in (above, below))
    value = _factors(b, above, known) if above else b.number(number)
    if above and number != 1:
        value = b.neg(value) if number == -1 else b.mul(value, b.number(number))
    return b.fn("div", value, _factors(b, below, known)) if below else value


def _factors(b: Builder, factors: list[sympy.Expr], known: Mapping[sympy.Symbol, int]) -> int:
    value = express(b, factors[0], known)
    for factor in factors[1:]:
        value = b.mul(value, express(b, factor, known))
    return value


# --- functions that choose, and powers ----------------------------------------------------------


def _where(b: Builder, node: Node, d: int) -> list[int | None]:
    """y = a where c, else b: da = d where c, else 0; db the other way round."""
    choice, zero = node.operands[0], b.number(0)
    return [None, b.fn("where", choice, d, zero), b.fn("where", choice, zero, d)]


def _larger(b: Builder, node: Node, d: int) -> list[int | None]:
    """y = max(a, b) or min: d to the operand that is chosen, half to each where they are equal."""
    one, other = node.operands
    first, second = ("gt", "lt") if node.op.fn == "max" else ("lt", "gt")
    half = b.mul(d, b.number(sympy.Rational(1, 2)))
    tie = b.fn("where", b.fn("eq", one, other), half, b.number(0))
    return [b.fn("where", b.fn(sign, one, other), d, tie) for sign in (first, second)]


def _relu(b: Builder, node: Node, d: int) -> list[int | None]:
    """y = max(a, 0): da = d where a > 0."""
    zero = b.number(0)
    return [b.fn("where", b.fn("gt", node.operands[0], zero), d, zero)]


def _abs(b: Builder, node: Node, d: int) -> list[int | None]:
    """y = |a|: da = d * sign(a)."""
    return [b.mul(d, b.fn("sign", node.operands[0]))]


def _mod(b: Builder, node: Node, d: int) -> list[int | None]:
    """y = a - b * floor(a / b): da = d, db = -d * floor(a / b)."""
    whole = b.fn("floor", b.fn("div", *node.operands))
    return [d, b.neg(b.mul(d, whole))]


def _pow(b: Builder, node: Node, d: int) -> list[int | None]:
    """y = a ** b: da = d * b * a ** (b - 1), db = d * y * log(a), which is 0 at a = 0."""
    base, exponent = node.operands
    return [_base(b, base, exponent, d), _exponent(b, node, d)]


def _base(b: Builder, base: int, exponent: int, d: int) -> int | None:
    """d * b * a ** (b - 1); 0 where b is 0."""
    number, zero = b.value(exponent), b.number(0)
    if number == 0:
        return None
    if number is not None:
        lower = b.number(1) if number == 1 else base
        lower = b.fn("pow", base, b.number(number - 1)) if number not in (1, 2) else lower
        product = b.mul(d, b.mul(lower, exponent))
        finite = bool(number.is_number and number >= 1)
        return product if finite and base not in b.masked else _unless_zero(b, d, product)
    lower = b.fn("pow", base, b.fn("sub", exponent, b.number(1)))
    product = b.mul(d, b.mul(exponent, lower))
    flat = b.fn("or", b.fn("eq", exponent, zero), b.fn("eq", d, zero))
    return b.fn("where", flat, zero, product)


def _exponent(b: Builder, node: Node, d: int) -> int | None:
    """d * y * log(a); 0 where a is 0 and b is not negative."""
    base, exponent = node.operands
    if exponent not in b.active:
        return None
    number, zero = b.value(base), b.number(0)
    if number is not None and number.is_positive:
        return _unless_zero(b, d, b.mul(d, b.mul(node.id, b.number(sympy.log(number)))))
    product = b.mul(d, b.mul(node.id, b.fn("log", base)))
    flat = b.fn("and", b.fn("eq", base, zero), b.fn("ge", exponent, zero))
    return b.fn("where", b.fn("or", flat, b.fn("eq", d, zero)), zero, product)


CHOOSING = {
    "where": _where,
    "max": _larger,
    "min": _larger,
    "relu": _relu,
    "abs": _abs,
    "mod": _mod,
    "pow": _pow,
}
"""Functions whose slopes are a rule of nodes."""
