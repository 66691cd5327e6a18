"""Lines of a forward -> the same, in which values go after what reads them last: where nothing is
kept for a gradient, their memory is there for what comes next."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterator, Sequence


def with_deletions(
    lines: Sequence[str], after: Sequence[str], names: Sequence[str], room: int
) -> list[str]:
    """`lines` with a `del` of `names` that no later line reads, nor one of those `after` them; what
    the last statement reads goes in any case."""
    body = ast.parse("\n".join(lines)).body
    rest = {node.id for node in ast.walk(ast.parse("\n".join(after))) if isinstance(node, ast.Name)}
    last = {name: place for place, each in enumerate(body) for name in read_by(each)}
    made = {name for each in body for name in assigned(each)}
    kept = rest | {name for each in body for name in _captured(each)}
    found, begun = list[str](), 0
    for place, each in enumerate(body[:-1]):
        found += lines[begun : each.end_lineno]
        begun = each.end_lineno or 0
        own = [n for n in names if last.get(n) == place and n in made and n not in kept]
        rows = textwrap.wrap(", ".join(own), room - len("del "), break_long_words=False)
        found += [f"del {row.rstrip(',')}" for row in rows]
    return [*found, *lines[begun:]]


def read_by(statement: ast.stmt) -> set[str]:
    """The names that a statement has."""
    return {node.id for node in ast.walk(statement) if isinstance(node, ast.Name)}


def assigned(statement: ast.stmt) -> Iterator[str]:
    """The names that a statement gives values to, whatever happens."""
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    for target in targets:
        for each in target.elts if isinstance(target, ast.Tuple) else [target]:
            if isinstance(each, ast.Name):
                yield each.id


def _captured(statement: ast.stmt) -> Iterator[str]:
    """The names that functions within a statement read, maybe later."""
    for node in ast.walk(statement):
        if isinstance(node, ast.Lambda | ast.FunctionDef):
            yield from (n.id for n in ast.walk(node) if isinstance(n, ast.Name))
