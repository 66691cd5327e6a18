"""Conditions on sizes that the shapes of a function's arguments tell: those that a spec states, and
those that its elaboration took a branch on, as where it wrote a loop out."""

from __future__ import annotations

from collections.abc import Iterable

import sympy
from archc.backends.eager.scope import Scope
from archc.backends.expression import NOT, number
from archc.backends.writer import INDENT, Writer, quoted

from archc.dims import Axis
from archc.ir import layer as ir


def is_told(scope: Scope, expr: sympy.Basic) -> bool:
    """Whether shapes tell everything in an expression."""
    names = [str(symbol) for symbol in expr.free_symbols]
    return all(scope.local(name) in scope.sources for name in names)


def told_length(scope: Scope, axis: Axis) -> str:
    """How long an axis must be, by other shapes or by its own size; "" if any length is right."""
    name = scope.lengths.get(axis.name)
    if name is None and axis.size.is_Symbol:
        name = scope.sizes.get(str(axis.size))
    if name in scope.sources:
        return scope.ask(name)
    if axis.kind == "dim" and not axis.size.is_Symbol and is_told(scope, axis.size):
        return scope.size(axis.size).text
    return ""


def conditions(scope: Scope, needs: Iterable[ir.Requirement]) -> list[str]:
    """`n == 2`: those that shapes can break, for a test of all of them."""
    found = [need.condition for need in needs if is_told(scope, need.condition)]
    return [scope.number(condition).at(NOT) for condition in found if condition.free_symbols]


def write_needs(writer: Writer, scope: Scope, title: str, needs: Iterable[ir.Requirement]) -> None:
    """Lines that refuse sizes which break one of them, each told in its own words."""
    for need in needs:
        names = sorted(str(symbol) for symbol in need.condition.free_symbols)
        known = {name: scope.local(name) for name in names}
        if names and is_told(scope, need.condition):
            write_need(writer, title, need, {n: scope.ask(text) for n, text in known.items()})


def write_need(writer: Writer, title: str, need: ir.Requirement, names: dict[str, str]) -> None:
    """The lines for one; `names` says how its sizes are called there."""
    broken = number(sympy.Not(need.condition), names)
    values = ", ".join(f"{text} = {{{text}}}" for _, text in sorted(names.items()))
    text = f"requires {need.text}"
    if need.settled:
        text = f"was compiled for {number(need.condition, {name: name for name in names})}"
    text = f"{title} {text}".replace("{", "{{").replace("}", "}}")
    with writer.block(f"if {broken}:"):
        whole = f"raise ValueError(f{quoted(f'{text}, got {values}')})"
        if len(whole) <= writer.room:
            writer.line(whole)
        else:
            parts = [f"{INDENT}f{quoted(part)}" for part in (f"{text}, ", f"got {values}")]
            writer.include(["raise ValueError(", *parts, ")"])
