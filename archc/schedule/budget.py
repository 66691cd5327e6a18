"""Layer IR -> layer IR: a recurrence goes token by token where chunks are too much to hold.

Some chunked forms have whole states at every row, or a small matrix for each element of them, as
where states feed one another element by element. A program cannot hold them, and memory would move
them several times; a walk of the tokens has one state, in registers. So it has where a state that
is a matrix has no chunks, and another one, which has, takes all of it at every token, and where
each token has a matrix of its own, whose products for every head would be made in memory.
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
MATRICES = (
    "token by token: in chunks, matrices of every token and head, or states of every token, would "
    "be in memory"
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
    if any(_scans_matrices(form.forward, node, recurrence) for node in form.forward):
        return MATRICES
    return TOO_LARGE if max(_tiles(form.forward, recurrence), default=0) >= MOST else None


def _is_kept_whole(graph: Graph, node: Node, recurrence: ir.Recurrence) -> bool:
    """Whether a value is a matrix that a loop inside of the form has at every token."""
    inside = graph[node.operands[0]].op if isinstance(node.op, ir.Result) else None
    if not isinstance(inside, ir.Recurrence) or inside.stream != recurrence.stream:
        return False
    names = {axis.name for axis in node.type.axes if axis.kind == "dim"} - {*recurrence.heads}
    return inside.stream in node.type.axes and len(names) > 1


def _scans_matrices(graph: Graph, node: Node, recurrence: ir.Recurrence) -> bool:
    """Whether a value is a scan of matrices that rows have each for itself, as large as a dim of
    the layer, and heads too, or else heads have states that are larger than what is given for each
    token. Without heads there is too little that a walk does at once."""
    if not isinstance(node.op, ck.Scan) or node.op.matrix is None:
        return False
    matrix, heads = graph[node.operands[0]].type, {*recurrence.heads}
    of_a_dim = not matrix.axis(node.op.matrix[0]).size.is_Integer
    if node.op.axis not in matrix.names or not heads or not of_a_dim:
        return False
    given = [{*each.type.names} for each in graph if isinstance(each.op, ir.Input)]
    tokens = [names for names in given if recurrence.stream.name in names]
    states = [{axis.name for axis in state.axes} for state in recurrence.states]
    larger = not all(any(state <= names for names in tokens) for state in states)
    return larger or bool(heads & {*matrix.names})


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
