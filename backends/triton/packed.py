"""Whether the kernels of a graph can do packed sequences, and the lines of PyTorch between them.

Kernels know where each chunk's sequence begins and ends. Lines of PyTorch do not: they may compute
token by token, for each sequence, and sums over everything, but they may not look along tokens.
"""

from __future__ import annotations

from collections.abc import Iterator

import sympy

from archc.dims import Axis
from archc.ir import chunk as ck
from archc.ir import layer as ir
from archc.ir.graph import Graph, Node
from archc.ir.kernel import Kernels

POINTWISE = (
    ir.Elementwise, ir.Gather, ir.Contract, ir.Reduce, ir.Delta, ir.Constant, ir.Input, ir.Result,
    ck.Conjugate, ck.Detach, ck.Select, ck.Place, ck.Stack, ck.Expand, ck.Sums, ck.Move, ck.Scan,
)  # fmt: skip
"""Ops that treat all positions alike of axes that they do not name."""


def why_alone(graph: Graph, plan: Kernels, tokens: Axis) -> str:
    """Why packed sequences go one by one; "" if they need not."""
    axes = {axis for node in graph for axis in node.type.axes if axis.kind == "stream"}
    counts = {axis.size for axis in axes if axis.size.has(ck.CHUNK)}
    if counts != {sympy.ceiling(tokens.size / ck.CHUNK)}:
        return "chunks are counted in another way"
    for node in written_in_torch(graph, plan):
        if not _knows_no_borders(graph, node, tokens):
            return f"{type(node.op).__name__} is in PyTorch, which knows no borders"
    return ""


def read_by_chunks(graph: Graph, plan: Kernels) -> frozenset[int]:
    """The values that PyTorch reads along the chunks: they must be 0 where there is no chunk."""
    read = (graph[o] for node in written_in_torch(graph, plan) for o in node.operands)
    return frozenset(
        value.id for value in read if any(axis.size.has(ck.CHUNK) for axis in value.type.axes)
    )


def written_in_torch(graph: Graph, plan: Kernels) -> Iterator[Node]:
    """The nodes that lines of PyTorch compute: those of the fallback, and their operands that no
    kernel stores."""
    stored = {id for kernel in plan.kernels for id in kernel.stores.values()}
    stored |= {id for kernel in plan.kernels for id in kernel.loads if id not in plan.fallback}
    waiting, seen = [*plan.fallback], set[int]()
    while waiting:
        id = waiting.pop()
        if id in seen or (id in stored and id not in plan.fallback):
            continue
        seen.add(id)
        yield graph[id]
        waiting += graph[id].operands


def _knows_no_borders(graph: Graph, node: Node, tokens: Axis) -> bool:
    """Whether a line of PyTorch is right whatever sequence a token or chunk is of."""
    op, values = node.op, [node, *(graph[operand] for operand in node.operands)]
    streams = {name for value in values for name in _streams(value)}
    if isinstance(op, ck.Last | ck.Chunks):
        return op.stream == tokens.name and _streams(values[1]) == [op.stream] and _batch(node)
    if isinstance(op, ck.AtLast):
        return op.stream.name == tokens.name and streams == {tokens.name} and _batch(node)
    if isinstance(op, ck.Sums) and op.axis == tokens.name:
        return streams == {tokens.name}
    if isinstance(op, ir.Reduce) and op.axes == (tokens.name,) and _batch(node):
        return streams == {tokens.name} and op.fn in ("sum", "max", "min")
    if isinstance(op, ir.Reduce) and len(op.axes) == 1 and _batch(node) and not _streams(node):
        (axis,) = (a for a in values[1].type.axes if a.name == op.axes[0])
        if axis.kind == "stream" and axis.size.has(ck.CHUNK):
            return streams == {axis.name} and op.fn in ("sum", "max", "min")
    if isinstance(op, ir.Position):
        return not streams
    if not isinstance(op, POINTWISE) or getattr(op, "axis", None) in streams:
        return False
    if isinstance(op, ck.Expand) and not _streams(node) and _batch(node):
        return False
    if isinstance(op, ir.Contract | ir.Reduce) and not _streams(node) and not _batch(node):
        return True  # of everything there is
    return all(_streams(value) == _streams(node) or not _batch(value) for value in values)


def _streams(node: Node) -> list[str]:
    return [axis.name for axis in node.type.axes if axis.kind == "stream"]


def _batch(node: Node) -> bool:
    return any(axis.kind == "batch" for axis in node.type.axes)
