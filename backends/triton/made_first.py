"""A check of what was printed: no line of a kernel reads a name that a later one makes.

Triton says so when a kernel is launched, on the user's GPU; this says so when it is written.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence

from archc.diagnostics import InternalError


def in_order(name: str, lines: tuple[str, ...]) -> tuple[str, ...]:
    """The lines of the body of a kernel. Raises InternalError if one reads a name before it is
    made."""
    body = ast.parse("\n".join(["def kernel():", "    pass", *lines])).body
    assert isinstance(body[0], ast.FunctionDef)
    every = {*_names(ast.walk(body[0]), ast.Store)}
    early = _early(body[0].body, every, set())
    if early:
        raise InternalError(f"kernel `{name}` reads `{early}` before it is made")
    return lines


def _names(nodes: Iterable[ast.AST], how: type[ast.expr_context]) -> list[str]:
    """The names among nodes that are read, or made."""
    return [node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, how)]


def _early(block: Sequence[ast.stmt], every: set[str], made: set[str]) -> str:
    """The first name of `every` that a block reads before it is among those `made`, to which it
    adds its own; either way of a branch makes what it makes."""
    for statement in block:
        blocks = [getattr(statement, field, []) for field in ("body", "orelse")]
        inside = {id(node) for inner in blocks for each in inner for node in ast.walk(each)}
        own = [node for node in ast.walk(statement) if id(node) not in inside]
        read, makes = sorted({*_names(own, ast.Load)} & every - made), _names(own, ast.Store)
        if isinstance(statement, ast.AugAssign):  # x += y reads x
            read += [name for name in makes if name not in made]
        if read:
            return read[0]
        made |= {*makes}
        for inner in blocks:
            found = _early(inner, every, made)
            if found:
                return found
    return ""
