"""Statements that nothing comes of, read off the tree: a name that no output depends on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from archc.diagnostics import Diagnostic, Label
from archc.elaborate.mentions import walk
from archc.source import Span
from archc.syntax import tree


def unread(file: tree.File) -> tuple[Diagnostic, ...]:
    """A warning for each statement of the file's layers whose values reach no output, and for each
    input that nothing mentions, of layers that none in the file applies: those that one does may
    have to take what they do not use, as those of a law do."""
    found: list[Diagnostic] = []
    for decl in file.decls:
        if all(decl is each or decl.name not in _words(each) for each in file.decls):
            found += _unread_inputs(decl)
        found += map(_warning, unread_statements(decl.body))
    return tuple(found)


def _unread_inputs(decl: tree.Decl) -> Iterator[Diagnostic]:
    """A warning for each input of a layer that no statement of it mentions."""
    inputs = [stmt for stmt in decl.body if isinstance(stmt, tree.Input)]
    others = [stmt for stmt in decl.body if not isinstance(stmt, tree.Input)]
    read, help = {*_words(tuple(others))}, "use it, or remove it: callers have to give it"
    for item in (item for stmt in inputs for item in stmt.names):
        if item.name not in read:
            yield _never_used([item.name], item.span, help)


def unread_statements(stmts: Sequence[tree.Stmt]) -> Iterator[tree.Assign]:
    """The definitions among the statements of a layer, the first to the last, that neither another
    statement mentions nor a definition that is mentioned itself."""
    definitions = [stmt for stmt in stmts if isinstance(stmt, tree.Assign)]
    others = [stmt for stmt in stmts if not isinstance(stmt, tree.Assign)]
    wanted, left = set(_words(tuple(others))), definitions
    while True:
        read = [each for each in left if wanted & {target.name for target in each.targets}]
        if not read:
            break
        left = [each for each in left if each not in read]
        for each in read:
            items = tuple(target.items for target in each.targets)
            wanted |= {*_words((each.value, each.by, items))}
    yield from left


def _words(node: Any) -> Iterator[str]:
    """Every name in nodes, also those that stand as texts: heads, states, rules of `chunk`."""
    for part in walk(node):
        for field in vars(part).values():
            for each in field if isinstance(field, tuple) else (field,):
                if isinstance(each, str):
                    yield each


def _warning(stmt: tree.Assign) -> Diagnostic:
    help = "use it, or remove the line: it computes nothing, and trains nothing"
    return _never_used([target.name for target in stmt.targets], stmt.targets[0].span, help)


def _never_used(names: Sequence[str], span: Span, help: str) -> Diagnostic:
    return Diagnostic(
        "E0226",
        f"no output depends on {' and '.join(f'`{name}`' for name in names)}",
        Label(span, "never used"),
        helps=(help,),
        severity="warning",
    )
