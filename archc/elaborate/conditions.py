"""`require`: what a spec says about its sizes."""

from __future__ import annotations

import re

import sympy

from archc.elaborate.scope import Scope
from archc.elaborate.values import Option
from archc.syntax import tree


def require(scope: Scope, stmt: tree.Require, exported: set[str]) -> None:
    """`require H * K == d`: recorded, to be checked when sizes are known."""
    condition = scope.evaluate(stmt.condition)
    if condition in (sympy.true, sympy.false) or isinstance(condition, Option):
        holds = condition.value if isinstance(condition, Option) else condition is sympy.true
        if not holds:
            raise scope.error("E0401", f"`{stmt.condition.span.text}` does not hold", stmt.span)
    elif isinstance(condition, sympy.Basic) and not isinstance(condition, sympy.Expr):
        text = _requirement_text(scope, stmt.condition.span.text)
        scope.require(condition, text, scope.site or stmt.span)
    else:
        raise scope.error(
            "E0403",
            "`require` takes a condition on sizes",
            stmt.condition.span,
            helps=["of a value, it is a promise: `chunk: bound a > 0`"],
        )


def _requirement_text(scope: Scope, text: str) -> str:
    """A condition in the caller's words: in a function `size(D)` is the size that D stands for."""

    def size(match: re.Match[str]) -> str:
        axes = scope.axis_named(match[1]) or ()
        return " * ".join(str(axis.size) for axis in axes) or match[0]

    return re.sub(r"\bsize\((\w+)\)", size, text)
