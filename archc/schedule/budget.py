"""Layer IR -> layer IR: a recurrence goes token by token where chunks are too much to hold.

Some chunked forms have whole states at every row, or a small matrix for each element of them, as
where states feed one another element by element. A program cannot hold them, and memory would move
them several times; a walk of the tokens has one state, in registers. So it has where a state that
is a matrix has no chunks, and another one, which has, takes all of it at every token.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from archc.dims import Axis
from archc.ir import chunk as ck
from archc.ir import layer as ir
from archc.ir.graph import Graph, Node
from archc.ir.rewrite import rewrite

USUAL, SHORTEST = 64, 16
"""How long dims and chunks are taken to be, and the shortest side of a tile."""

MOST = 16 * 65_536
"""Numbers in a tile that no program holds: 16 times the registers of a processor."""

TOO_LARGE = (
    "token by token: in chunks, with dims of 64, a value would be 16 times what the registers of "
    "a processor hold"
)
LOOP_INSIDE = (
    "token by token: in chunks, a matrix that stays a loop would be in memory at every token"
)


def within_budget(layer: ir.Layer) -> ir.Layer:
    """The layer, its recurrences without chunked forms that no program could hold."""

    def loose(graph: Graph, node: Node) -> int | None:
        """recurrence(..), in chunks -> recurrence(..)"""
        if not isinstance(node.op, ir.Recurrence) or beyond(node.op) is None:
            return None
        return graph.add(replace(node.op, chunked=None), *node.operands)

    return rewrite(layer, [loose])


def beyond(recurrence: ir.Recurrence) -> str | None:
    """The reason why a recurrence's chunks are too much to hold; None where it has none, or they
    are not."""
    form = recurrence.chunked
    if form is None:
        return None
    if any(_is_kept_whole(form.forward, node, recurrence) for node in form.forward):
        return LOOP_INSIDE
    return TOO_LARGE if max(_tiles(form.forward, recurrence), default=0) >= MOST else None


def _is_kept_whole(graph: Graph, node: Node, recurrence: ir.Recurrence) -> bool:
    """Whether a value is a matrix that a loop inside of the form has at every token."""
    inside = graph[node.operands[0]].op if isinstance(node.op, ir.Result) else None
    if not isinstance(inside, ir.Recurrence) or inside.stream != recurrence.stream:
        return False
    names = {axis.name for axis in node.type.axes if axis.kind == "dim"} - {*recurrence.heads}
    return inside.stream in node.type.axes and len(names) > 1


def _tiles(graph: Graph, recurrence: ir.Recurrence) -> Iterator[int]:
    """Numbers in a tile of each value, of one chunk and head."""
    for node in graph:
        yield math.prod(_length(axis) for axis in node.type.axes if _is_tiled(axis, recurrence))


def _is_tiled(axis: Axis, recurrence: ir.Recurrence) -> bool:
    """Whether a program has more than one place along an axis."""
    return axis.size == ck.CHUNK or (axis.kind == "dim" and axis.name not in recurrence.heads)


def _length(axis: Axis) -> int:
    """How long the tile of an axis is."""
    size = int(axis.size) if axis.size.is_Integer else USUAL
    return max(SHORTEST, 1 << (size - 1).bit_length())
