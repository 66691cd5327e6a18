"""Layer IR -> scores: a number of each pair that is a sum over heads, as kernels make it.

    I[t, s] = sum over h of f(t, s, h)

where f is a formula of pairs as in a weighted sum, such as w[t, h] relu(q[t, h] . k[s]). In memory
are the sums alone, and not a number for each pair and head.
"""

from __future__ import annotations

from dataclasses import dataclass

from archc.attention.recognise import NotWeightedSum, Reading
from archc.attention.weighted_sum import WeightedSum
from archc.ir import layer as ir
from archc.ir.builder import Builder
from archc.ir.graph import Node


@dataclass(frozen=True)
class Scores:
    """A sum over heads: `fold` has the formula and what enters, its `node` the sum; `over` is the
    axis of heads that is summed."""

    fold: WeightedSum
    over: str


def scores_of(attend: ir.Attend) -> Scores | None:
    """The sum over heads that choices are made of, the last one; None where kernels make none."""
    body, found = attend.body, None
    for node in body:
        if _summed(attend, node):
            found = _read(attend, node) or found
    return found


def _summed(attend: ir.Attend, node: Node) -> str:
    """The axis of heads that a node sums numbers of pairs over; empty where it does not."""
    body, pairs = attend.body, {"batch", attend.reader.name, attend.read.name}
    if not pairs <= {*node.type.names}:
        return ""
    if isinstance(node.op, ir.Reduce):
        own = node.op.axes[0] if node.op == ir.Reduce("sum", node.op.axes[:1]) else ""
        return own if own not in pairs else ""
    if not isinstance(node.op, ir.Contract):
        return ""
    labels = {label: axis.name for label, axis in node.op.out}
    gone: set[str] = set()
    for names, operand in zip(node.op.ins, node.operands, strict=True):
        for label, name in zip(names, body[operand].type.names, strict=True):
            if labels.get(label, name) != name:
                return ""
            gone |= set() if label in labels else {name}
    wide = [o for o in node.operands if pairs <= {*body[o].type.names}]
    if len(gone) != 1 or len(wide) != 1 or not gone <= {*body[wide[0]].type.names}:
        return ""
    return gone.pop()


def _read(attend: ir.Attend, node: Node) -> Scores | None:
    """The formula of what is summed; None where a part of it is none of pairs."""
    body, reading, over = attend.body, Reading(attend, node), _summed(attend, node)
    pairs = {attend.reader.name, attend.read.name}
    (wide,) = (body[o] for o in node.operands if pairs <= {*body[o].type.names})
    reading.heads = tuple(axis for axis in wide.type.axes if axis.kind == "dim")
    reading.pairs_axes = wide.type.axes
    try:
        score = reading.formula(wide)
        for operand in map(body.__getitem__, node.operands):
            if operand.id != wide.id:
                score = Builder(reading.graph).fn("mul", reading.formula(operand), score)
    except NotWeightedSum:
        return None
    reading.graph.outputs["score"] = score
    reading.graph.prune()
    sources = tuple(reading.sources.values())
    beside = reading.lookups or any(source.summed or not source.real for source in sources)
    if beside or len(reading.dots) < 1:
        return None
    fold = WeightedSum(
        node.id, attend.reader, attend.read, reading.heads, sources, tuple(reading.dots),
        reading.graph, (), softmax=False, values=None, sink=None,
    )  # fmt: skip
    return Scores(fold, over)
