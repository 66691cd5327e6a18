"""A check of what was printed: no line of a kernel reads a name that a later one makes.

Triton says so when a kernel is launched, on the user's GPU; this says so when it is written.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence

from archc.diagnostics import InternalError


def in_order(name: str, lines: tuple[str, ...]) -> tuple[str, ...]:
    """The lines of the body of a kernel. Raises InternalError if one reads a name before it is
    made."""
    body = ast.parse("\n".join(["def kernel():", "    pass", *lines])).body
    assert isinstance(body[0], ast.FunctionDef)
    every = {_name(node, ast.Store) for node in ast.walk(body[0])} - {""}
    early = _early(body[0].body, every, set())
    if early:
        raise InternalError(f"kernel `{name}` reads `{early}` before it is made")
    return lines


def _name(node: ast.AST, how: type[ast.expr_context]) -> str:
    """The name that a node reads, or makes, if it does."""
    return node.id if isinstance(node, ast.Name) and isinstance(node.ctx, how) else ""


def _own(statement: ast.stmt) -> list[ast.AST]:
    """The nodes of a statement, but for those of statements in it."""
    found: list[ast.AST] = [statement]
    for node in found:  # which grows
        found += (each for each in ast.iter_child_nodes(node) if not isinstance(each, ast.stmt))
    return found


def _early(block: Sequence[ast.stmt], every: set[str], made: set[str]) -> str:
    """The first name of `every` that a block reads before it is among those `made`, to which it
    adds its own; either way of a branch makes what it makes."""
    for statement in block:
        own = _own(statement)
        read = sorted({_name(node, ast.Load) for node in own} & every - made)
        makes = {_name(node, ast.Store) for node in own}
        if isinstance(statement, ast.AugAssign):  # x += y reads x
            read += sorted(makes & every - made)
        if read:
            return read[0]
        made |= makes
        for inner in ("body", "orelse"):
            found = _early(getattr(statement, inner, []), every, made)
            if found:
                return found
    return ""
