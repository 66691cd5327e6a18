"""The reduction dims of an op: axes along which a result depends on other positions of operands."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

from archc.dims import Axis
from archc.ir import chunk as ck
from archc.ir import layer as ir
from archc.ir.graph import Graph, Node
from archc.tables import complete


def counts_chunks(axis: Axis) -> bool:
    """Whether an axis counts the chunks of a stream."""
    return axis.kind == "stream" and axis.size.has(ck.CHUNK)


def own_dims(axes: Iterable[Axis], heads: Collection[str]) -> list[Axis]:
    """The dims of a value that a program holds: all but heads, of which it has one."""
    return [a for a in axes if a.kind == "dim" and a.name not in heads]


def is_one_a_row(node: Node, heads: Collection[str]) -> bool:
    """Whether a value is a number for each row of a chunk and head."""
    dims = own_dims(node.type.axes, heads)
    return len(dims) == 1 and dims[0].size.has(ck.CHUNK)


def scans_numbers(node: Node) -> bool:
    """Whether a node is a scan along the rows of a chunk that no matrix is applied in."""
    return isinstance(node.op, ck.Scan) and node.op.matrix is None


def labelled(graph: Graph, node: Node) -> Iterator[tuple[str, Axis]]:
    """The labels of a Contract's operands, each with the axis that it stands for there."""
    for labels, operand in zip(node.op.ins, node.operands, strict=True):
        yield from zip(labels, graph[operand].type.axes, strict=True)


def reduction_dims(graph: Graph, node: Node) -> tuple[str, ...]:
    """The axes that an op sums over, or along which it looks at other positions."""
    if isinstance(node.op, ck.Conjugate):
        inner = (name for n in node.op.body for name in reduction_dims(node.op.body, n))
        return (*node.op.reduction_dims(), *inner)
    if isinstance(node.op, ck.ChunkOp):
        return node.op.reduction_dims()
    if isinstance(node.op, ir.Contract):
        return _contract(graph, node)
    return REDUCTION_DIMS[type(node.op)](node.op)


def split_of(graph: Graph, recurrence: Node, heads: Collection[str]) -> Axis | None:
    """A dim of a walk's states that no op of it crosses: each program has a part of it. The last,
    as products are fastest so; where there is no product the first, as elsewhere between walks."""
    crossed = {
        name for node in recurrence.op.body for name in reduction_dims(recurrence.op.body, node)
    }
    state = max(recurrence.op.states, key=lambda s: len(s.axes))
    free = [
        a for a in state.axes if a.kind == "dim" and a.name not in crossed and a.name not in heads
    ]  # fmt: skip
    shared = [a for a in free if all(a in each.axes for each in recurrence.op.states)]
    given = [graph[operand] for operand in recurrence.operands]
    products = any(isinstance(node.op, ir.Contract) for node in (*recurrence.op.body, *given))
    return shared[-1 if products else 0] if shared else None


def _contract(graph: Graph, node: Node) -> tuple[str, ...]:
    """The axes that are summed, by both their names, and those that come out by another name."""
    kept, found = dict(node.op.out), list[str]()
    for label, axis in labelled(graph, node):
        if label not in kept:
            found += [label, axis.name]
        elif kept[label].name != axis.name:
            found += [axis.name, kept[label].name]
    return tuple(found)


def _nothing(op: Any) -> tuple[str, ...]:
    return ()


def _region(op: Any) -> tuple[str, ...]:
    """Between regions axes are looked along by whoever follows their results."""
    return ()


def _window(op: ir.Window) -> tuple[str, ...]:
    return (op.stream, op.width.name, *([] if op.blocks is None else [op.blocks.name]))


def _segment(op: ir.Segment) -> tuple[str, ...]:
    matrix = (name for name in (op.row, op.col) if name is not None)
    return (op.path, op.reader.name, op.read.name, *matrix)


REDUCTION_DIMS: dict[type, Callable[[Any], tuple[str, ...]]] = complete(
    "`REDUCTION_DIMS` of archc/schedule/axes.py",
    {
        ir.Input: _nothing,
        ir.Param: _nothing,
        ir.Constant: _nothing,
        ir.Position: _nothing,
        ir.Delta: _nothing,
        ir.Noise: _nothing,
        ir.Elementwise: _nothing,
        ir.Reduce: lambda op: op.axes,
        ir.Gather: lambda op: (op.axis,),
        ir.Scatter: lambda op: (op.axis, op.into.name),
        ir.Join: lambda op: (*op.axes, op.into.name),
        ir.Reshape: lambda op: (*op.axes, *(axis.name for axis in op.into)),
        ir.Top: lambda op: (op.axis,),
        ir.Solve: lambda op: (op.row, op.col),
        ir.Shift: lambda op: (op.stream,),
        ir.Window: _window,
        ir.Softmax: lambda op: (op.over,),
        ir.Segment: _segment,
        ir.Substitute: lambda op: ("t", op.read),
        ir.Recurrence: _region,
        ir.Attend: _region,
        ir.Result: _region,
        ir.Call: _region,
    },
    (op for op in ir.OPS if op is not ir.Contract),
)
"""The dims that ops of the layer IR look along; those of products depend on their operands."""
