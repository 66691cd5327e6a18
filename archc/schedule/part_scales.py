"""Chunk IR -> chunk IR: programs of a walk scale the rows that they have a part of.

    V in parts:  sum[i] (k * s)[i, K] * v[i, V]  ->  sum[i] k[i, K] * (s * v)[i, V]

What a program has a part of is scaled once in all, as the walk goes; k is as it entered, and k * s
is neither written nor read.
"""

from __future__ import annotations

from collections.abc import Collection

from archc.dims import Axis
from archc.ir import layer as ir
from archc.ir.builder import Sharing
from archc.ir.graph import Graph, Node
from archc.ir.rewrite import in_order
from archc.schedule.axes import is_one_a_row, split_of
from archc.schedule.plain_factors import adds_to_one
from archc.schedule.row_scales import MUL, can_scale, enters, factors, scaled


def with_scales_of_parts(graph: Graph, heads: Collection[str]) -> Graph:
    """The graph with such products; itself if there are none."""
    new, places = graph.copy(), dict[int, float]()
    for walk in graph:
        split = _part_of(graph, walk, heads)
        if split is not None:
            for id in [o for o in walk.operands if new.users(o) == (walk.id,)]:
                _scale_parts(new, new[id], split, heads, places)
    return in_order(new, places) if places else graph


def _part_of(graph: Graph, walk: Node, heads: Collection[str]) -> Axis | None:
    """The dim that programs have a part of, of a walk that adds to one state: others have no
    registers left."""
    adds = isinstance(walk.op, ir.Recurrence) and adds_to_one(walk.op)
    return split_of(graph, walk, heads) if adds else None


def _scale_parts(
    graph: Graph, node: Node, split: Axis, heads: Collection[str], places: dict[int, float]
) -> None:
    """Let a product scale its factor with a dim rather than its other one; what is new stands in
    `places`."""
    first, b = graph.fresh, Sharing(graph, node.span)
    for old, other in (node.operands, node.operands[::-1]) if ir.is_product(node.op) else ():
        rows, scale = factors(b, old, heads)
        if scale is None or split.name in b.names(rows) or not is_one_a_row(graph[scale], heads):
            continue
        left, names = {*b.names(rows)}, {*b.names(scale)}
        given = enters(graph, rows) and enters(graph, other)
        if given and can_scale(graph, node, old, left, names):
            made = scaled(b, node, old, rows, scale)
            graph.substitute(node.id, made)
            places |= dict.fromkeys(range(first, graph.fresh), node.id)
            return


def scale_of(graph: Graph, node: Node, walk: Node, heads: Collection[str]) -> int | None:
    """The scale of rows that entered, if a value is their product and programs of a walk have a
    part of it each."""
    split = _part_of(graph, walk, heads) if node.op == MUL else None
    if split is None or split.name not in node.type.names:
        return None
    for rows, scale in (node.operands, node.operands[::-1]):
        if is_one_a_row(graph[scale], heads) and enters(graph, rows):
            return scale
    return None
