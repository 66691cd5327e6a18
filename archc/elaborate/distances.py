"""Distances of pairs that no attend reads, kept where a logarithm or a quotient has a value.

`log(1 + c * (t - s))` of a token ahead is no number. Its weight is 0, but the gradient of a factor
of it is a sum over all pairs, and 0 times no number is none. So `t - s` is at least what it is of a
pair that is read, where such a function depends on it; of pairs that are read nothing changes.
"""

from __future__ import annotations

from archc.dims import Axis
from archc.ir import layer as ir
from archc.ir.builder import Builder
from archc.ir.graph import Graph, Node

PARTIAL = {"log": 0, "sqrt": 0, "rsqrt": 0, "pow": 0, "div": 1}
"""Functions that have no value, or no slope, for some numbers: of which operand."""


def settle(graph: Graph, reader: Axis, read: Axis, mask: int) -> None:
    """In the body of an attend that reads no token ahead: let no `t - s` on which such a function
    depends be less than for a pair that is read."""
    for node in list(graph):
        if _function(node) != "sub" or _positions(graph, node) != [reader, read]:
            continue
        if not _reaches(graph, node.id, {reader.name, read.name}):
            continue
        build = Builder(graph, node.span)
        least = build.number(int(_is_strict(graph, mask, reader, read)))
        graph.substitute(node.id, build.fn("max", node.id, least))


def _function(node: Node) -> str:
    return node.op.fn if isinstance(node.op, ir.Elementwise) else ""


def _positions(graph: Graph, node: Node) -> list[Axis]:
    """The axes whose positions a node is made of."""
    ops = [graph[operand].op for operand in node.operands]
    return [op.axis for op in ops if isinstance(op, ir.Position)]


def _reaches(graph: Graph, id: int, pair: set[str]) -> bool:
    """Whether a function without a value for some numbers is taken of what a value makes of each
    pair."""
    found, waiting = {id}, [id]
    while waiting:
        current = waiting.pop()
        for user in graph.users(current):
            node = graph[user]
            place = PARTIAL.get(_function(node))
            if place is not None and node.operands[place] == current:
                return True
            if user not in found and pair <= set(node.type.names):
                found.add(user)
                waiting.append(user)
    return False


def _is_strict(graph: Graph, mask: int, reader: Axis, read: Axis) -> bool:
    """Whether a token does not read itself: `s < t` is part of the mask."""
    parts = [graph[id] for id in (mask, *graph.ancestors(mask))]
    below = any(_function(n) == "lt" and _positions(graph, n) == [read, reader] for n in parts)
    return below or any(
        _function(n) == "gt" and _positions(graph, n) == [reader, read] for n in parts
    )
