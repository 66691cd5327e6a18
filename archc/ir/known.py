"""Values that are known before any data: made of numbers and of indices alone."""

from __future__ import annotations

from collections.abc import Collection

from archc.ir import layer as ir
from archc.ir.graph import Graph


def is_known(graph: Graph, id: int, streams: Collection[str] = ()) -> bool:
    """Whether a value is made of numbers, of indices of dims and of the positions along `streams`
    alone."""
    node = graph[id]
    if isinstance(node.op, ir.Position):
        return node.op.axis.kind == "dim" or node.op.axis.name in streams
    known = isinstance(node.op, ir.Constant | ir.Elementwise)
    return known and all(is_known(graph, operand, streams) for operand in node.operands)
