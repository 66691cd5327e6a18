"""The values of all micro-steps of a token as one value along the axis of a spec that counts them.

    gather[n](beta, p) * gather[n](k, p)  for p = 0, 1, ..  ->  beta * k : [batch, t, n, H, K]

Rows of a chunk then read one tensor, each at its own step, and not each tensor at every step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from archc.dims import Axis
from archc.functions.interval import Interval, point
from archc.ir import chunk as ck
from archc.ir import layer as ir
from archc.ir.graph import Node
from archc.numerics.constants import number_interval
from archc.recurrence.chunk.frame import Frame


def together(
    frame: Frame, ids: Sequence[int], known: Mapping[str, Interval]
) -> tuple[int, str] | None:
    """The value whose entries along an axis are these values, made alike, and that axis; None where
    they are not made so. `known` are intervals of sizes: the axis must have no other entry."""
    axis = _counted(frame, ids[0])
    found = None if axis is None else _along(frame, list(ids), axis)
    if axis is None or found is None or axis not in frame.names(found):
        return None
    counted = _has(frame.graph[found].type.axis(axis), len(ids), known)
    return (found, axis) if counted else None


def _has(axis: Axis, count: int, known: Mapping[str, Interval]) -> bool:
    """Whether an axis has just so many entries."""
    return number_interval(axis.size, known) == point(count)


def _counted(frame: Frame, id: int) -> str | None:
    """The axis that a value of the first micro-step reads at 0."""
    ids = sorted({id, *frame.graph.ancestors(id)})
    axes = {frame.graph[each].op.axis for each in ids if _place(frame, frame.graph[each]) == 0}
    return axes.pop() if len(axes) == 1 else None


def _place(frame: Frame, node: Node) -> int | None:
    """The number at which a node reads an axis."""
    if not isinstance(node.op, ir.Gather):
        return None
    index = frame.graph[node.operands[1]].op
    known = isinstance(index, ir.Constant) and index.value.is_Integer
    return int(index.value) if known else None


def _along(frame: Frame, ids: list[int], axis: str) -> int | None:
    """The value along an axis of which these are the entries in order."""
    nodes = [frame.graph[id] for id in ids]
    first = nodes[0]
    if any(node.op != first.op or len(node.operands) != len(first.operands) for node in nodes):
        return None
    if len(set(ids)) == 1 or not first.operands:
        return None if axis in first.type.names else first.id
    if isinstance(first.op, ir.Gather) and first.op.axis == axis:
        whole = {node.operands[0] for node in nodes}
        in_order = [_place(frame, node) for node in nodes] == [*range(len(nodes))]
        return whole.pop() if in_order and len(whole) == 1 else None
    if not isinstance(first.op, ir.Elementwise | ck.Expand):
        return None
    alike = zip(*(node.operands for node in nodes), strict=True)
    every = [_along(frame, list(each), axis) for each in alike]
    operands = [each for each in every if each is not None]
    return frame.add(first.op, *operands) if len(operands) == len(every) else None
