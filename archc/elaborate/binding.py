"""Binding names: each once, computed when needed, and all of them in the end."""

from __future__ import annotations

from collections.abc import Sequence

from archc.diagnostics import Refused
from archc.elaborate.clashes import declared_twice
from archc.elaborate.mentions import names_defined
from archc.elaborate.scope import Scope
from archc.elaborate.values import Lazy, Value
from archc.source import Span
from archc.syntax import tree


def declare(scope: Scope, name: str, span: Span, value: Lazy | Value) -> None:
    """Bind a name once; what a `repeat` carries is bound apart from the value it comes in with."""
    key = given_anew(name) if name in scope.carried else name
    if key in scope.names:
        earlier = scope.names[key]
        at = earlier.span if isinstance(earlier, Lazy) else getattr(earlier, "origin", None)
        raise declared_twice(scope, name, span, at)
    scope.names[key] = value


def given_anew(name: str) -> str:
    """The name for the new value of a carried name; no name of a spec has a space."""
    return f"next {name}"


def force(scope: Scope, stmts: Sequence[tree.Stmt]) -> None:
    """Compute every definition, in the order of the text, so that each mistake is found."""
    for defined in names_defined(stmts):
        name = given_anew(defined) if defined in scope.carried else defined
        found = scope.find(name)
        if isinstance(found, Lazy):
            try:
                scope.lookup(name, found.span)
            except Refused:
                continue
