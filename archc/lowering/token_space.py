"""The tiling of a token region: axes that the grid has one place of, and axes in tiles.

grid       batch, blocks of tokens, and every dim that nothing in the region looks along
whole      dims that are reduced: a tile has all of one, padded to a power of 2
split      one more dim, in blocks: the fastest in memory, so that loads are of neighbours
unrolled   the places of a short convolution: a loop loads them one by one, and each thread has all
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from archc.dims import Axis
from archc.ir import chunk as ck
from archc.ir import layer as ir
from archc.ir.graph import Graph, Node


@dataclass(frozen=True)
class Space:
    """The dims of a region by what becomes of them, each in the order of memory."""

    grid: tuple[Axis, ...]
    whole: tuple[Axis, ...]
    split: Axis | None
    unrolled: tuple[Axis, ...]

    @property
    def tiled(self) -> tuple[Axis, ...]:
        """The dims that tiles have."""
        return (*self.whole, *([self.split] if self.split else []))


def space_of(graph: Graph, stream: str) -> Space:
    """The space of a graph whose values run along a stream."""
    unrolled = {op.width.name for op in _ops(graph, ir.Window)}
    unrolled |= {op.width for op in _ops(graph, ck.Unwindow)}
    axes = _in_order_of_memory(graph)
    looked = {name for node in graph for name in _along(graph, node, stream)}
    known = looked | _of_results(graph)
    dims = [a for a in axes if a.kind == "dim" and a.name in known and a.name not in unrolled]
    whole = tuple(axis for axis in dims if axis.name in looked)
    rest = [axis for axis in dims if axis.name not in looked]
    split = rest.pop() if rest and (not whole or dims[-1] == rest[-1]) else None
    return Space(tuple(rest), whole, split, tuple(a for a in axes if a.name in unrolled))


def _of_results(graph: Graph) -> set[str]:
    """The dims of what leaves the region and of what it sums; those alone along which places are
    taken are read at the places of others."""
    kept = {graph[id].type for id in graph.outputs.values()}
    for node in graph:
        if isinstance(node.op, ir.Reduce | ir.Contract):
            kept |= {graph[id].type for id in node.operands}
    return {axis.name for type in kept for axis in type.axes}


def runs_through(graph: Graph, id: int) -> bool:
    """Whether a value is made by a short convolution or by the transpose of one."""
    made = (graph[each].op for each in (id, *graph.ancestors(id)))
    return any(isinstance(op, ir.Window | ck.Unwindow) for op in made)


def _ops(graph: Graph, kind: type) -> Iterable:
    return (node.op for node in graph if isinstance(node.op, kind))


def _in_order_of_memory(graph: Graph) -> list[Axis]:
    """Every axis once; the dims of what has most of them stand in its order, which is that of
    memory if one with so many is read from there or written."""
    kept = {*graph.outputs.values(), *(n.id for n in graph if isinstance(n.op, ir.Input))}
    nodes = sorted(graph, key=lambda n: (len(n.type.axes), n.id in kept), reverse=True)
    found: dict[str, Axis] = {}
    for node in nodes:
        for axis in node.type.axes:
            found.setdefault(axis.name, axis)
    return [*found.values()]


def _along(graph: Graph, node: Node, stream: str) -> set[str]:
    """The dims that a node looks along, one token at a time. What is summed over the tokens or the
    sequences too is summed by whoever gathers the sums of all programs."""
    if isinstance(node.op, ir.Gather) and runs_through(graph, node.operands[0]):
        return {node.op.axis}
    if isinstance(node.op, ir.Top):
        return {node.op.axis}
    if isinstance(node.op, ir.Reduce):
        type = graph[node.operands[0]].type
        shared = {axis.name for axis in type.axes if axis.kind == "batch"} | {stream}
        gathered = stream not in type.names or bool(shared & {*node.op.axes})
        return set() if gathered else set(node.op.axes)
    if isinstance(node.op, ir.Contract):
        kept = {label for label, _ in node.op.out}
        pairs = [
            (axis, label)
            for operand, labels in zip(node.operands, node.op.ins, strict=True)
            for axis, label in zip(graph[operand].type.axes, labels, strict=True)
        ]
        summed = [axis for axis, label in pairs if label not in kept]
        gathered = any(axis.name == stream or axis.kind == "batch" for axis in summed)
        gathered = gathered or stream not in {axis.name for axis, _ in pairs}
        few = set() if gathered else few_labels(node)
        rows = {axis.name for label, axis in node.op.out if label in few and axis.kind == "dim"}
        return set() if gathered else {axis.name for axis in summed} | rows
    return set()


def few_labels(node: Node) -> set[str]:
    """The labels of a product of two matrices but the longest: the one that is last in two of the
    three, as that of vectors in memory is. None of another contraction."""
    if len(node.op.ins) != 2:
        return set()
    first, second = node.op.ins
    out = [label for label, _ in node.op.out]
    every, summed = {*first, *second}, {*first, *second} - {*out}
    if not summed or every in ({*first}, {*second}):
        return set()
    last = Counter(labels[-1] for labels in (first, second, out) if labels)
    return every - {label for label, count in last.items() if count > 1}
