"""A layer's arguments: sizes and numbers stay symbols, options and layers are settled."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import sympy

from archc.diagnostics import Refused
from archc.dims import Axis, Undefined, number_symbol, size_symbol
from archc.elaborate.expr import settled_condition
from archc.elaborate.mentions import names_called, sizes_of
from archc.elaborate.scope import Scope
from archc.elaborate.tied import bound, mentioned_often
from archc.elaborate.values import AbstractLayer, LayerRef, Option, Value
from archc.ir import layer as ir
from archc.syntax import tree


def declare_arguments(
    scope: Scope, decl: tree.Decl, given: Mapping[str, Value], symbolic: set[str]
) -> None:
    """Bind a layer's sizes and options, and record them as its arguments."""
    sizes, called = sizes_of(decl, scope.module), set(names_called(decl))
    open_ends = sizes - sizes_of(decl, scope.module, ranges=False)
    for parameter in decl.params:
        name = parameter.name
        if name in scope.names:
            raise scope.error("E0210", f"argument `{name}` is declared twice", parameter.span)
        default = scope.evaluate(parameter.default) if parameter.default is not None else None
        value = given.get(name)
        if value is None and parameter.default is not None:
            default = settled_condition(scope, default, parameter.default)
        needed = name in sizes and not (_is_none(value) and name in open_ends)
        if isinstance(value, Option) and needed and not isinstance(default, Option):
            raise _no_size(scope, decl, parameter, reprlib.repr(value.value))
        settled = default if value is None and name not in symbolic else value
        if isinstance(settled, Option) or (settled is value and isinstance(settled, LayerRef)):
            inside = replace(scope, several=mentioned_often(decl.body))
            _settle(scope, name, bound(inside, name, settled), given)
        elif value is None and default is None and name in called and name not in symbolic:
            scope.names[name] = AbstractLayer(name)
            scope.context.paths.add(name)  # one layer, however often it is applied
            scope.context.args.append(ir.Arg(name, None))
        else:
            is_size = name in sizes
            if is_size and parameter.default is not None and _is_no_size(default):
                text = parameter.default.span.text
                raise _no_size(scope, decl, parameter, f"`{text}`", default)
            if is_size and _is_no_size(value):
                raise _no_size(scope, decl, parameter, str(value), value)
            exact = default if isinstance(default, sympy.Expr) else None
            try:
                symbol = _number(scope, name, value, exact, is_size, keep=name in symbolic)
            except Undefined as error:
                raise scope.error("E0404", str(error), parameter.span) from None
            if isinstance(default, sympy.Expr) or name in sizes:
                scope.dims[name] = (Axis(name, symbol),)


def _no_size(
    scope: Scope, decl: tree.Decl, parameter: tree.Parameter, found: str, value: Any = None
) -> Refused:
    """What is given where a size is needed."""
    helps = list[str]()
    if isinstance(value, sympy.Expr) and 0 < value < 1:
        told = f"every layer that takes it says so by its default: `{parameter.name} = 1 / 2`"
        helps = [f"if it is a share that sizes are made of, {told}"]
    return scope.error(
        "E0503",
        f"`{parameter.name}` of `{decl.name}` must be a size, a whole number that is not negative, "
        f"but it is {found}",
        parameter.span,
        helps=helps,
    )


def _is_no_size(value: Value | None) -> bool:
    """Whether a value is a number that is no size."""
    if not isinstance(value, sympy.Expr) or not value.is_number:
        return False
    return not (value.is_integer and value.is_nonnegative)


def _is_none(value: Value | None) -> bool:
    """Whether `none` is given: for a name that only bounds the range of an `attend`, no bound."""
    return isinstance(value, Option) and value.value is None


def _settle(scope: Scope, name: str, value: Any, given: Mapping[str, Value]) -> None:
    """An option or layer: part of what the layer is; sizes of a layer become sizes of this one."""
    scope.names[name] = value
    plain = value.value if isinstance(value, Option) else value
    scope.context.args.append(ir.Arg(name, None, plain))
    for symbol in value.symbols if isinstance(value, LayerRef) else ():
        scope.context.args.append(ir.Arg(symbol.name, symbol))
        known = given.get(symbol.name)
        if isinstance(known, sympy.Expr):
            scope.context.values[symbol.name] = known


def _number(
    scope: Scope,
    name: str,
    value: Value | None,
    default: sympy.Expr | None,
    is_size: bool,
    keep: bool,
) -> sympy.Symbol:
    """A size or number: a symbol, with a value for decisions where one is known."""
    symbol = size_symbol(name) if is_size else number_symbol(name)
    if isinstance(value, sympy.Expr) and not keep:
        default = value
    known = value if isinstance(value, sympy.Expr) else None
    if known is None and default is not None:
        settled = scope.settled(default)
        known = settled if settled.is_number else None
    scope.names[name] = symbol
    scope.context.args.append(ir.Arg(name, symbol, default))
    if known is not None:
        scope.context.values[name] = known
    return symbol
