"""Sizes and options of a layer as numbers, from what the user gave.

Codes: E0501 an unknown argument, E0502 one that is missing, E0503 a value that is no size or
number, E0504 a requirement that does not hold, E0505 an option that is already settled.
"""

from __future__ import annotations

import numbers
import reprlib
from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import Any

import sympy

from archc.diagnostics import MOST_FINDINGS, Report, did_you_mean, fail
from archc.dims import MAX_SIZE, Undefined, at, exact, free_symbols
from archc.ir import layer as ir

Number = int | float
Values = dict[Any, Any]
"""The exact value of each symbol that has one so far."""


def resolve_sizes(
    layer: ir.Layer, given: Mapping[str, Any], most: int = MOST_FINDINGS
) -> dict[str, Number]:
    """A number for every size and option of the layer, by argument name, in the layer's order.

    Defaults are filled in from earlier arguments. Raises ArchError, with at most so many findings,
    if an argument is unknown, missing, or no number of its kind, or if a requirement of the layer
    or of a layer that it calls does not hold. Options that were settled when the layer was
    elaborated have no number; they may be given again with the same value.
    """
    report = Report(most=most)
    _check_names(layer, given, report)
    values: Values = {}
    for arg in layer.args:
        if arg.symbol is None:
            _check_settled(layer, arg, given, report)
            continue
        value = _argument(layer, arg, given, values, report)
        if value is not None:
            values[arg.symbol] = value
    report.check()
    _check_requirements(layer, values, report, set())
    report.check()
    return {a.name: plain(values[a.symbol]) for a in layer.args if a.symbol is not None}


def callee_sizes(call: ir.Call, sizes: Mapping[str, Number]) -> dict[str, Number]:
    """The sizes of a called layer, by name, from those of the caller."""
    return {name: evaluate(expr, sizes) for name, expr in call.sizes}


def deciding(layer: ir.Layer) -> frozenset[str]:
    """The arguments on which something was decided when the layer was elaborated: in itself, in the
    layers that it calls, or by way of a default."""
    return _deciding(layer, {})


def _deciding(layer: ir.Layer, known: dict[int, frozenset[str]]) -> frozenset[str]:
    if id(layer) in known:
        return known[id(layer)]
    settled = (r.condition for r in layer.requirements if r.settled)
    found = {symbol.name for condition in settled for symbol in free_symbols(condition)}
    for _, call in layer.calls:
        inner = _deciding(call.callee, known)
        for name, size in call.sizes:
            found |= {symbol.name for symbol in free_symbols(size)} if name in inner else set()
    for arg in reversed(layer.args):
        if arg.name in found and isinstance(arg.default, sympy.Expr):
            found |= {symbol.name for symbol in free_symbols(arg.default)}
    known[id(layer)] = frozenset(found)
    return known[id(layer)]


def evaluate(expr: sympy.Expr, sizes: Mapping[str, Number]) -> Number:
    """An expression in sizes as a plain number; -oo and oo are infinities.

    Raises KeyError, naming the symbol, if the expression has one that `sizes` has no value for, and
    ArchError E0503 if it comes to no number, as a division by zero does.
    """
    names = [symbol.name for symbol in free_symbols(expr)]
    known = {name: exact_number(sizes[name]) for name in names}
    try:
        return plain(at(expr, known))
    except Undefined as error:
        given = ", ".join(f"{name} = {known[name]}" for name in sorted(known))
        raise fail("E0503", f"`{expr}` has no value with {given}", notes=[str(error)]) from None


def exact_number(value: Any) -> sympy.Expr:
    """A number as the user wrote it: 0.1 is 1/10, not the nearest binary fraction."""
    if isinstance(value, int | numbers.Integral):
        return sympy.Integer(int(value))
    if isinstance(value, Fraction):
        return sympy.Rational(value.numerator, value.denominator)
    return exact(repr(float(value)))


def plain(value: sympy.Expr) -> Number:
    """An exact number as a Python one: int where it is whole and of 64 bits, as torch takes it,
    else the nearest float."""
    if value.is_integer and abs(value) < 2**63:
        return int(value)
    return float(value.evalf(30))


# --- the steps of resolve_sizes ----------------------------------------------------------------


def _check_names(layer: ir.Layer, given: Mapping[str, Any], report: Report) -> None:
    """Every given name is an argument, and every argument without a default is given."""
    names = [arg.name for arg in layer.args]
    takes = f"`{layer.name}` takes " + (", ".join(f"`{name}`" for name in names) or "no sizes")
    for name in given:
        if name not in names:
            helps = did_you_mean(name, names)
            message = f"`{layer.name}` has no size or option `{name}`"
            report.error("E0501", message, notes=[takes], helps=helps)
    missing = [
        arg.name
        for arg in layer.args
        if arg.symbol is not None and arg.default is None and arg.name not in given
    ]
    if missing:
        listed = ", ".join(f"`{name}`" for name in missing)
        message = f"`{layer.name}` needs a value for {listed}"
        example = ", ".join(f"{name}=64" for name in missing)
        report.error("E0502", message, notes=[takes], helps=[f"give it by name, e.g. {example}"])


def _check_settled(layer: ir.Layer, arg: ir.Arg, given: Mapping[str, Any], report: Report) -> None:
    """An option that shaped the graph cannot change afterwards."""
    value = given.get(arg.name, arg.default)
    if (tuple(value) if isinstance(value, list) else value) != arg.default:
        message = f"`{arg.name}` of `{layer.name}` is settled as {arg.default}"
        helps = ["give it when the spec is loaded, so that the layer is built for it"]
        report.error("E0505", message, layer.span, helps=helps)


def _argument(
    layer: ir.Layer, arg: ir.Arg, given: Mapping[str, Any], values: Values, report: Report
) -> sympy.Expr | None:
    """The exact value of one argument, or None if it has none (reported here or as missing)."""
    assert arg.symbol is not None
    notes: list[str] = []
    if arg.name in given:
        value = _given_number(given[arg.name])
        shown = _written(given[arg.name])
    elif arg.default is None:
        return None
    else:
        default = sympy.Integer(arg.default) if isinstance(arg.default, int) else arg.default
        value = _with(default, values)
        if value.free_symbols:
            return None  # an earlier argument is missing, which is already reported
        shown = _shown(value)
        notes = [f"its default is {default}, with {_listed(default.free_symbols, values)}"]
    size = bool(arg.symbol.is_integer)
    if value is not None and (_is_size(value) if size else value.is_extended_real):
        return value
    kind = "a size, a whole number that is not negative" if size else "a number"
    message = f"`{arg.name}` of `{layer.name}` must be {kind}, but it is {shown}"
    report.error("E0503", message, layer.span if notes else None, notes=notes)
    return None


def _given_number(value: Any) -> sympy.Expr | None:
    """A number that the user gave, exactly; None for anything else, also for nan, inf and True."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        return None
    if not isinstance(value, numbers.Integral | Fraction) and not abs(float(value)) < float("inf"):
        return None
    return exact_number(value)


def _check_requirements(
    layer: ir.Layer, values: Values, report: Report, right: set[tuple], path: str = ""
) -> None:
    """The layer's requirements, then the sizes and requirements of every layer it calls; `right`:
    those that were asked for with the same values and hold."""
    key, before = (id(layer), *values.items()), len(report.diagnostics)
    if key in right:
        return
    for requirement in layer.requirements:
        _check_requirement(layer, requirement, values, report, path)
    distinct = {(id(call.callee), call.sizes): call for _, call in reversed(layer.calls)}
    for call in reversed(distinct.values()):
        where = f"{path}{call.path}"
        inner = _callee_values(layer, call, values, report, where)
        if inner is not None:
            _check_requirements(call.callee, inner, report, right, f"{where}.")
    if len(report.diagnostics) == before:
        right.add(key)


def _callee_values(
    layer: ir.Layer, call: ir.Call, values: Values, report: Report, where: str
) -> Values | None:
    """The sizes of a called layer; None, after a report, if one of them is no size."""
    inner: Values = {}
    given, known = dict(call.sizes), _named(values)
    refused = False
    for arg in call.callee.args:
        if arg.symbol is None:
            continue
        inner[arg.symbol] = _at(given[arg.name], known)
        if arg.symbol.is_integer and not _is_size(inner[arg.symbol]):
            message = f"`{arg.name}` of `{where}` must be a whole number that is not negative"
            notes = [f"it is {given[arg.name]} = {_shown(inner[arg.symbol])}"]
            report.error("E0503", message, layer.span, notes=notes)
            refused = True
    return None if refused else inner


def _check_requirement(
    layer: ir.Layer, requirement: ir.Requirement, values: Values, report: Report, path: str
) -> None:
    """One condition; both sides of a comparison are named with what they come to."""
    condition = _with(requirement.condition, values)
    if condition == sympy.true:
        return
    name = f"{layer.name} at {path[:-1]}" if path else layer.name
    notes = [f"with {_listed(requirement.condition.free_symbols, values)}"]
    if isinstance(requirement.condition, sympy.core.relational.Relational):
        sides = (requirement.condition.lhs, requirement.condition.rhs)
        notes.insert(0, " and ".join(_side(side, values) for side in sides if not side.is_number))
    if requirement.settled:
        message = f"`{name}` was built for other sizes: `{requirement.text}` comes out differently"
        helps = ["give these sizes when the spec is loaded, so that the layer is built for them"]
    else:
        message, helps = f"`{name}` requires `{requirement.text}`, which does not hold", []
    report.error("E0504", message, requirement.span, "required here", notes=notes, helps=helps)


def _side(side: Any, values: Values) -> str:
    """`H*K is 96`."""
    return f"{side} is {_shown(_with(side, values))}"


def _is_size(value: sympy.Expr) -> bool:
    """Whether an exact number can be the size of an axis."""
    if isinstance(value, sympy.Integer):
        return 0 <= value.p <= MAX_SIZE
    return bool(value.is_integer and 0 <= value <= MAX_SIZE)


def _with(value: Any, values: Values) -> Any:
    """An expression or condition with the known sizes put in; nan if that has no value."""
    return _at(value, _named(values))


def _named(values: Values) -> dict[str, Any]:
    """The values of symbols by name."""
    return {symbol.name: known for symbol, known in values.items()}


def _at(value: Any, known: Mapping[str, Any]) -> Any:
    """An expression or condition with sizes put in by name; nan if that has no value."""
    try:
        return at(value, known)
    except Undefined:
        return sympy.nan


def _written(value: Any) -> str:
    """A value as the user gave it, in a few words."""
    long = isinstance(value, int) and abs(value) > 10**40
    return "a number of more than 40 digits" if long else reprlib.repr(value)


def _shown(value: sympy.Expr) -> str:
    """An exact number for a message; a division by zero has no value."""
    return str(value) if value.is_finite else "undefined"


def _listed(symbols: Iterable[sympy.Basic], values: Values) -> str:
    """`d = 100, H = 8`, by name."""
    known = {str(symbol): values[symbol] for symbol in symbols if symbol in values}
    return ", ".join(f"{name} = {known[name]}" for name in sorted(known))
