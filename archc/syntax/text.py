"""Tree -> text and JSON: every node with its place and its fields, for people and programs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from typing import Any

from archc.source import Span
from archc.syntax import tree


def as_text(node: tree.Node) -> str:
    """The tree, one node a line with line:column, children indented below their field's name."""
    return "\n".join(_lines(node, "", "")) + "\n"


def as_json(node: tree.Node) -> dict[str, Any]:
    """The tree as plain data; each node has its kind and 1-based line and column."""
    return {
        "node": type(node).__name__,
        "line": node.span.line,
        "column": node.span.column,
        **{name: _plain(value) for name, value in _fields(node)},
    }


def _fields(node: tree.Node) -> Iterator[tuple[str, Any]]:
    """Fields of a node that are not places."""
    for field in fields(node):
        value = getattr(node, field.name)
        if not isinstance(value, Span):
            yield field.name, value


def _plain(value: Any) -> Any:
    if isinstance(value, tree.Node):
        return as_json(value)
    return [_plain(item) for item in value] if isinstance(value, tuple) else value


def _lines(node: tree.Node, indent: str, label: str) -> Iterator[str]:
    values = list(_fields(node))
    inner = [(name, value) for name, value in values if _has_nodes(value)]
    plain = (
        f"{name}={_inline(value)}"
        for name, value in values
        if not _has_nodes(value) and value not in (None, ())
    )
    head = " ".join([f"{label}{type(node).__name__}", *plain])
    yield f"{indent}{head}  # {node.span.line}:{node.span.column}"
    for name, value in inner:
        children = value if isinstance(value, tuple) else (value,)
        for number, child in enumerate(children):
            place = f"{name}[{number}]: " if isinstance(value, tuple) else f"{name}: "
            yield from _lines(child, indent + "  ", place)


def _has_nodes(value: Any) -> bool:
    """Whether a field holds a node or nodes."""
    first = value[0] if isinstance(value, tuple) and value else value
    return isinstance(first, tree.Node)


def _inline(value: Any) -> str:
    """A field that holds names or texts."""
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return repr(value) if isinstance(value, str) and not value.isidentifier() else str(value)
