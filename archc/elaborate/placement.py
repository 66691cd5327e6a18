"""Where a statement may stand: inputs and outputs belong to a layer, `return` to a function."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from archc.diagnostics import Refused
from archc.elaborate.scope import Scope
from archc.syntax import tree

OF_A_LAYER = (tree.Input, tree.Output, tree.Chunk)
BLOCKS = (tree.Recurrence, tree.Attend)
FORBIDDEN: tuple[tuple[tuple[type, ...], tuple[type, ...]], ...] = (
    (BLOCKS, (*OF_A_LAYER, tree.Param, tree.Return)),
    ((tree.Blocks, tree.Route, tree.Repeat), (*OF_A_LAYER, tree.Return)),
)
"""What may not stand in which statements' bodies."""


def check_placement(scope: Scope, decl: tree.Decl) -> None:
    """Refuse statements that stand where they mean nothing."""
    function = decl.kind == "function"
    forbidden = (*OF_A_LAYER, tree.Param) if function else (tree.Return,)
    found = list(_misplaced(decl.body, forbidden, f"`{decl.name}`, a {decl.kind}"))
    for stmt, place in found:
        word = stmt.span.text.split()[0].rstrip(":")
        message = f"`{word}` does not belong into {place}"
        scope.error("E0221", message, stmt.span, "misplaced", helps=_instead(stmt, function))
    if found:
        raise Refused(decl.name)


def _instead(stmt: tree.Stmt, function: bool) -> list[str]:
    """The help for a misplaced statement: what to write, and where."""
    if isinstance(stmt, tree.Return) and not function:
        return [f"write `output y = {stmt.value.span.text}`: a layer has outputs"]
    if isinstance(stmt, tree.Output) and function:
        return ["write `return`: a function has one value"]
    if function:
        return ["make it an argument of the function"]
    return ["write it in front of the block, or behind it"]


def _misplaced(
    stmts: Sequence[tree.Stmt], forbidden: tuple[type, ...], place: str
) -> Iterator[tuple[tree.Stmt, str]]:
    """Each misplaced statement, and what it stands in."""
    for stmt in stmts:
        if isinstance(stmt, forbidden):
            yield stmt, place
        for kinds, inside in FORBIDDEN:
            if isinstance(stmt, kinds):
                word = stmt.span.text.split()[0]
                body: Sequence[tree.Stmt] = getattr(stmt, "body", ())
                yield from _misplaced(body, (*forbidden, *inside), f"a `{word}`")
