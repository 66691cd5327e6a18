"""The ops that may move from a layer into its recurrences, and the names of their values there."""

from __future__ import annotations

from archc.ir import layer as ir
from archc.ir.free_names import marked
from archc.ir.graph import Graph, Node


def may_move(graph: Graph, node: Node, stream: str, whole: bool = False) -> bool:
    """Whether a value is elementwise and real, along the tokens, and made of real values; `whole`:
    or of any numbers."""
    values = (o for o in node.operands if not (whole and is_number(graph, o)))
    real = all(graph[id].type.dtype == "real" for id in (node.id, *values))
    return isinstance(node.op, ir.Elementwise) and real and stream in node.type.names


def is_number(graph: Graph, id: int) -> bool:
    """Whether a value is a constant, which stands anywhere."""
    return isinstance(graph[id].op, ir.Constant)


def called(graph: Graph, id: int) -> str | None:
    """The name of a value in the spec; None if it has none."""
    node = graph[id]
    return node.op.name if isinstance(node.op, ir.Input | ir.Param) else node.name


def in_words(graph: Graph, id: int) -> str:
    """A value's name in the spec, or the text that it comes from."""
    node = graph[id]
    text = node.span.text if node.span else type(node.op).__name__.lower()
    return called(graph, id) or text


def fresh(name: str, taken: set[str]) -> str:
    """A name that nothing has yet, which is taken then."""
    name = marked(name, taken)
    taken.add(name)
    return name
