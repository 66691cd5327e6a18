"""Which axes an op crosses: positions of the result depend on other positions of the operands."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any

from archc.dims import Axis
from archc.ir import chunk as ck
from archc.ir import layer as ir
from archc.ir.graph import Graph, Node


def counts_chunks(axis: Axis) -> bool:
    """Whether an axis counts the chunks of a stream."""
    return axis.kind == "stream" and axis.size.has(ck.CHUNK)


def own_dims(axes: Iterable[Axis], heads: Collection[str]) -> list[Axis]:
    """The dims of a value that a program holds: all but heads, of which it has one."""
    return [a for a in axes if a.kind == "dim" and a.name not in heads]


def scans_numbers(node: Node) -> bool:
    """Whether a node is a scan along the rows of a chunk that no matrix is applied in."""
    return isinstance(node.op, ck.Scan) and node.op.matrix is None


def crossing(graph: Graph, node: Node) -> tuple[str, ...]:
    """The axes that an op sums over, or along which it looks at other positions."""
    if isinstance(node.op, ir.Contract):
        return _contract(graph, node)
    rule = CROSSING.get(type(node.op))
    return () if rule is None else rule(node.op)


def _contract(graph: Graph, node: Node) -> tuple[str, ...]:
    """What is summed, by both its names, and what comes out by another name."""
    kept, found = dict(node.op.out), list[str]()
    for labels, operand in zip(node.op.ins, node.operands, strict=True):
        for label, axis in zip(labels, graph[operand].type.axes, strict=True):
            if label not in kept:
                found += [label, axis.name]
            elif kept[label].name != axis.name:
                found += [axis.name, kept[label].name]
    return tuple(found)


def _body(op: ck.Conjugate) -> tuple[str, ...]:
    """What its products cross."""
    return (*op.over, *(name for node in op.body for name in crossing(op.body, node)))


CROSSING: dict[type, Callable[[Any], tuple[str, ...]]] = {
    ir.Reduce: lambda op: op.axes,
    ir.Gather: lambda op: (op.axis,),
    ck.Sums: lambda op: (op.axis,),
    ck.Move: lambda op: (op.axis,),
    ck.Select: lambda op: (op.axis,),
    ck.Place: lambda op: (op.axis.name,),
    ck.Chunks: lambda op: () if op.steps is None else (op.steps,),
    ck.Tokens: lambda op: () if op.steps is None else (op.steps.name,),
    ck.Scan: lambda op: (op.axis, *(op.matrix or ())),
    ck.Spans: lambda op: (op.row, op.col.name),
    ck.SpansGradient: lambda op: (op.row, op.col),
    ck.Gram: lambda op: (op.row, op.col.name, *op.over),
    ck.Mix: lambda op: (op.row, op.col),
    ck.GateGradient: lambda op: (op.row, op.col),
    ck.Inverse: lambda op: (op.row, op.col),
    ck.Conjugate: _body,
}
