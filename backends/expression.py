"""Python expressions as text with a precedence, so that brackets stand only where needed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import sympy

from archc.functions.definitions import HEADS

OR, AND, NOT, COMPARE, BITOR, BITAND, ADD, MUL, UNARY, POWER, ATOM = range(11)
"""Precedences of Python's operators, weakest first."""

OPERATORS: dict[str, tuple[str, int]] = {
    "add": ("+", ADD), "sub": ("-", ADD), "mul": ("*", MUL), "div": ("/", MUL),
    "floordiv": ("//", MUL), "mod": ("%", MUL), "eq": ("==", COMPARE), "ne": ("!=", COMPARE),
    "lt": ("<", COMPARE), "le": ("<=", COMPARE), "gt": (">", COMPARE), "ge": (">=", COMPARE),
}  # fmt: skip
"""Operators that mean the same for tensors and for numbers."""


@dataclass(frozen=True)
class Text:
    """An expression's text and how tightly its outermost operator binds."""

    text: str
    level: int = ATOM
    inner: Text | None = None
    """The operand of a minus or `~` in front."""

    def at(self, level: int) -> str:
        """The text as an operand of an operator of that level."""
        return self.text if self.level >= level else f"({self.text})"

    def __str__(self) -> str:
        return self.text


def binary(operator: str, level: int, left: Text, right: Text) -> Text:
    """`left operator right`; brackets keep the grouping, which decides how results are rounded."""
    first = left.at(level + 1 if level == COMPARE else level)
    second = right.at(level if operator in ("&", "|") else level + 1)
    return Text(f"{first} {operator} {second}", level)


def power(base: Text, exponent: Text) -> Text:
    """`base ** exponent`."""
    return Text(f"{base.at(ATOM)} ** {exponent.at(POWER)}", POWER)


def prefixed(operator: str, operand: Text) -> Text:
    """`-operand`, `~operand`."""
    return Text(f"{operator}{operand.at(UNARY)}", UNARY, operand)


def negative(operand: Text) -> Text:
    """`-operand`."""
    return prefixed("-", operand)


def call(function: str, *arguments: Text | str) -> Text:
    """`function(a, b)`."""
    return Text(f"{function}({', '.join(str(a) for a in arguments)})")


# --- sizes and constants -----------------------------------------------------------------------


def number(expr: sympy.Basic, names: Mapping[str, str]) -> Text:
    """A sympy expression in sizes and options as Python; `names` says how each symbol is reached.

    Integers stay integers (`d / H` is `d // H` where it is an integer by its assumptions or by
    `require`), conditions become comparisons. Raises KeyError for a symbol that has no name.
    """
    for kind, printer in _PRINTERS:
        if isinstance(expr, kind):
            return printer(expr, names)
    raise TypeError(f"no Python form of {type(expr).__name__}")


def whole(expr: sympy.Expr, names: Mapping[str, str]) -> Text:
    """The same for a size: divisions are exact and stay in the integers, `d / H` is `d // H`."""
    top, bottom = sympy.fraction(sympy.together(expr))
    if bottom == 1 or not _polynomial(top) or not _polynomial(bottom):
        return number(expr, names)
    return binary("//", MUL, number(top, names), number(bottom, names))


def _polynomial(expr: sympy.Expr) -> bool:
    kinds = (sympy.Add, sympy.Mul, sympy.Symbol, sympy.Integer)
    return all(isinstance(part, kinds) for part in sympy.preorder_traversal(expr))


def _float(expr: sympy.Basic, names: Mapping[str, str]) -> Text:
    value = repr(float(str(expr)))
    return _signed(value)


def _signed(text: str) -> Text:
    return Text(text, UNARY if text.startswith("-") else ATOM)


def _rational(expr: sympy.Rational, names: Mapping[str, str]) -> Text:
    """`0.1`, `1e-6` where that is short and exact, `1 / 3` otherwise."""
    if expr.is_integer:
        return _signed(str(expr) if abs(expr) < 2**63 else repr(float(expr)))  # torch's integers
    short = repr(int(expr.p) / int(expr.q)).replace("e-0", "e-")
    if sympy.Rational(short) == expr and len(short) < 12:
        return _signed(short)
    return binary("/", MUL, _signed(str(expr.p)), Text(str(expr.q)))


def _symbol(expr: sympy.Symbol, names: Mapping[str, str]) -> Text:
    return Text(names[expr.name])


def _add(expr: sympy.Add, names: Mapping[str, str]) -> Text:
    terms: list[Any] = list(expr.as_ordered_terms())
    result = number(terms[0], names)
    for term in terms[1:]:
        if term.could_extract_minus_sign():
            result = binary("-", ADD, result, number(-term, names))
        else:
            result = binary("+", ADD, result, number(term, names))
    return result


def _mul(expr: sympy.Mul, names: Mapping[str, str]) -> Text:
    """Factors above and below one fraction bar; square roots of several factors in one."""
    sign, top, bottom = "", [], []
    roots: dict[bool, list[sympy.Expr]] = {True: [], False: []}
    coefficient: Any
    coefficient, factors = expr.as_coeff_mul()
    if coefficient.is_negative:
        sign, coefficient = "-", -coefficient
    if coefficient.is_Rational and _rational(coefficient, names).level == MUL:
        top += [sympy.Integer(coefficient.p)] if coefficient.p != 1 else []
        bottom.append(sympy.Integer(coefficient.q))
    elif coefficient != 1:
        top.append(coefficient)
    for factor in sympy.Mul(*factors).as_ordered_factors():
        base, exponent = factor.as_base_exp()
        below = bool(exponent.is_Rational and exponent.is_negative)
        if abs(exponent) == sympy.Rational(1, 2):
            roots[below].append(base)
        else:
            (bottom if below else top).append(1 / factor if below else factor)
    over = [number(factor, names) for factor in top]
    if roots[False]:
        over.append(call("math.sqrt", number(sympy.Mul(*roots[False]), names)))
    result = over[0] if over else Text("1")
    for factor in over[1:]:
        result = binary("*", MUL, result, factor)
    for factor in bottom:
        result = binary("/", MUL, result, number(factor, names))
    if roots[True]:
        result = binary("/", MUL, result, call("math.sqrt", number(sympy.Mul(*roots[True]), names)))
    return Text(sign + result.text, MUL if sign else result.level)


def _pow(expr: sympy.Pow, names: Mapping[str, str]) -> Text:
    base, exponent = expr.as_base_exp()
    if exponent == sympy.Rational(1, 2):
        return call("math.sqrt", number(base, names))
    if exponent.is_Rational and exponent.is_negative:
        return binary("/", MUL, Text("1"), number(base**-exponent, names))
    return power(number(base, names), number(exponent, names))


def _ceiling(expr: sympy.Function, names: Mapping[str, str]) -> Text:
    return call("math.ceil", number(expr.args[0], names))


def _floor(expr: sympy.Function, names: Mapping[str, str]) -> Text:
    top, bottom = sympy.fraction(sympy.together(expr.args[0]))
    whole = all(symbol.is_integer for symbol in expr.free_symbols)  # `//` of floats is a float
    if whole and _polynomial(top) and _polynomial(bottom):
        return binary("//", MUL, number(top, names), number(bottom, names))
    return call("math.floor", number(expr.args[0], names))


def _several(function: str) -> Callable[[sympy.Basic, Mapping[str, str]], Text]:
    """Printer of a function whose arguments have no order: they are printed sorted."""

    def printer(expr: sympy.Basic, names: Mapping[str, str]) -> Text:
        arguments = sorted(expr.args, key=sympy.default_sort_key)
        return call(function, *(number(a, names) for a in arguments))

    return printer


def _function(name: str) -> Callable[[sympy.Basic, Mapping[str, str]], Text]:
    def printer(expr: sympy.Basic, names: Mapping[str, str]) -> Text:
        return call(name, *(number(a, names) for a in expr.args))

    return printer


def _relation(expr: Any, names: Mapping[str, str]) -> Text:
    symbol = {sympy.Eq: "==", sympy.Ne: "!="}.get(type(expr))
    return binary(symbol or expr.rel_op, COMPARE, number(expr.lhs, names), number(expr.rhs, names))


def _joined(word: str, level: int) -> Callable[[sympy.Basic, Mapping[str, str]], Text]:
    def printer(expr: sympy.Basic, names: Mapping[str, str]) -> Text:
        parts = sorted(expr.args, key=sympy.default_sort_key)
        return Text(f" {word} ".join(number(p, names).at(level + 1) for p in parts), level)

    return printer


def _not(expr: sympy.Not, names: Mapping[str, str]) -> Text:
    return Text(f"not {number(expr.args[0], names).at(NOT)}", NOT)


def _mod(expr: sympy.Mod, names: Mapping[str, str]) -> Text:
    return binary("%", MUL, *(number(a, names) for a in expr.args))


_PRINTERS: tuple[tuple[type, Callable[..., Text]], ...] = (
    (sympy.Rational, _rational),
    (sympy.Float, _float),
    (sympy.core.numbers.Infinity, lambda e, n: Text("math.inf")),
    (sympy.core.numbers.NegativeInfinity, lambda e, n: Text("-math.inf", UNARY)),
    (sympy.core.numbers.Pi, lambda e, n: Text("math.pi")),
    (sympy.core.numbers.Exp1, lambda e, n: Text("math.e")),
    (sympy.logic.boolalg.BooleanTrue, lambda e, n: Text("True")),
    (sympy.logic.boolalg.BooleanFalse, lambda e, n: Text("False")),
    (sympy.Symbol, _symbol),
    (sympy.Add, _add),
    (sympy.Mul, _mul),
    (sympy.ceiling, _ceiling),
    (sympy.floor, _floor),
    (sympy.Max, _several("max")),
    (sympy.Min, _several("min")),
    *((head, _function(fn.number)) for head, fn in HEADS.items() if fn.number),
    (sympy.Pow, _pow),
    (sympy.Mod, _mod),
    (sympy.Rel, _relation),
    (sympy.Not, _not),
    (sympy.And, _joined("and", AND)),
    (sympy.Or, _joined("or", OR)),
)
