"""Chunk IR -> chunk IR: what is 0 and has a gradient alone is dropped, where that is derived.

    C + C (x - detach(x))  ->  C

A running maximum that does not matter is a constant but for its ends, whose gradient comes by such
addends of what is there after the last token: a recurrence of numbers that are 0.
"""

from __future__ import annotations

from archc.ir import chunk as ck
from archc.ir import layer as ir
from archc.ir.graph import Graph, Node
from archc.ir.rewrite import rewrite_graph


def without_rises(graph: Graph) -> Graph:
    """The graph without such addends; itself if there are none."""
    return rewrite_graph(graph, [_without])


def _without(graph: Graph, node: Node) -> int | None:
    """The other addend of a sum or difference."""
    if node.op not in (ir.Elementwise("add"), ir.Elementwise("sub")):
        return None
    first, second = node.operands
    for addend, other in ((second, first), (first, second)):
        if _is_rise(graph, graph[addend]) and graph[other].type == node.type:
            return other if other == first or node.op.fn == "add" else None
    return None


def _is_rise(graph: Graph, node: Node) -> bool:
    """Whether a value is what it is less the same as a constant, or that times another."""
    given = [graph[operand] for operand in node.operands]
    if node.op == ir.Elementwise("mul"):
        return any(_is_rise(graph, each) for each in given)
    if node.op != ir.Elementwise("sub"):
        return False
    return isinstance(given[1].op, ck.Detach) and given[1].operands[0] == given[0].id
