"""Layer IR -> scores: a number of each pair, or the sum of them over heads, as kernels make it.

    I[t, s] = sum over h of f(t, s, h)        p[t, s, g] = sum over the h of a group g of f(t, s, h)
    I[t, s, h] = f(t, s, h)

where f is a formula of pairs as in a weighted sum, such as w[t, h] relu(q[t, h] . k[s]), or a
softmax of one along the tokens read. In memory are the sums alone, and not a number for each pair
and head. What bounds of positions rule out is -inf.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import sympy

from archc.attention.bounds import always, bound, conjuncts
from archc.attention.recognise import NotWeightedSum, Reading
from archc.attention.weighted_sum import Bound, WeightedSum
from archc.ir import layer as ir
from archc.ir.builder import Builder
from archc.ir.graph import Node


@dataclass(frozen=True)
class Scores:
    """A sum over heads: `fold` has the formula and what enters, its `node` the sum. Its weights are
    what is summed, those of a softmax too. `over` is the axis of heads that is summed over, all of
    it, or `share` heads at a time, of which each is a place of `groups`; empty where each head has
    a number of its own. `masked`: what the bounds of the fold rule out is -inf; its node is that
    then. `summed`: they are factors of sums, for which they are in the dtype of the data."""

    fold: WeightedSum
    over: str
    groups: str | None = None
    share: sympy.Expr = sympy.S.One
    masked: bool = False
    summed: bool = False


def scores_of(attend: ir.Attend) -> Scores | None:
    """The sum over heads that choices are made of, the last one, or a number of each head; None
    where kernels make none."""
    found = None
    for node in attend.body:
        if {"batch", attend.reader.name, attend.read.name} <= {*node.type.names}:
            found = _of_groups(attend, node) or _of_all(attend, node) or found
    found = found or _of_each(attend)
    if found is None:
        return None
    found, body = _masked(attend, found), attend.body
    after = (body[id].op for id in body.descendants(found.fold.node))
    return replace(found, summed=not all(isinstance(x, ir.Elementwise | ir.Top) for x in after))


def _of_each(attend: ir.Attend) -> Scores | None:
    """A number of each pair and head, as much of its formula as kernels make."""
    body, pairs = attend.body, {"batch", attend.reader.name, attend.read.name}
    for node in reversed([*body]):
        masked = node.op == ir.Elementwise("where") and (
            body[node.operands[2]].op == ir.Constant(-sympy.oo)
        )
        if pairs <= {*node.type.names} and node.type.dtype == "real" and not masked:
            fold = _read(attend, node, node, [])
            if fold is not None and not fold.softmax:
                return Scores(fold, "")
    return None


def _masked(attend: ir.Attend, scores: Scores) -> Scores:
    """Scores with the bounds outside which they are -inf, if they are nothing else."""
    body, node = attend.body, scores.fold.node
    users = [body[user] for user in body.users(node)]
    if len(users) != 1 or users[0].op != ir.Elementwise("where") or scores.fold.softmax:
        return scores
    mask, score, rest = users[0].operands
    found = bounds_of(attend, body[mask])
    if score != node or body[rest].op != ir.Constant(-sympy.oo) or found is None:
        return scores
    return replace(scores, fold=replace(scores.fold, node=users[0].id, bounds=found), masked=True)


def bounds_of(attend: ir.Attend, mask: Node) -> tuple[Bound, ...] | None:
    """The bounds that a mask is; None if it is more."""
    reader, read, body = attend.reader.name, attend.read.name, attend.body
    found = [bound(body, c, reader, read) for c in conjuncts(body, mask) if not always(body, c)]
    known = [each for each in found if each is not None]
    return tuple(known) if len(known) == len(found) else None


def _of_groups(attend: ir.Attend, node: Node) -> Scores | None:
    """A sum over the heads of each group, as a scatter by h // share is."""
    body = attend.body
    if not isinstance(node.op, ir.Scatter):
        return None
    wide, index = (body[operand] for operand in node.operands)
    if index.op != ir.Elementwise("floordiv"):
        return None
    place, share = (body[operand].op for operand in index.operands)
    if not isinstance(place, ir.Position) or place.axis.name != node.op.axis:
        return None
    groups = node.op.into
    if not isinstance(share, ir.Constant) or share.value != sympy.floor(
        place.axis.size / groups.size
    ):
        return None
    fold = _read(attend, node, wide, [])
    if fold is None or share.value not in {n for s in fold.sources for _, _, n in s.shares}:
        return None
    return Scores(fold, node.op.axis, groups.name, share.value)


def _of_all(attend: ir.Attend, node: Node) -> Scores | None:
    """A sum over all heads, of numbers that may be weighted."""
    over = _summed(attend, node)
    if not over:
        return None
    pairs, body = {attend.reader.name, attend.read.name}, attend.body
    (wide,) = (body[o] for o in node.operands if pairs <= {*body[o].type.names})
    others = [body[o] for o in node.operands if o != wide.id]
    fold = _read(attend, node, wide, others)
    return None if fold is None else Scores(fold, over)


def _summed(attend: ir.Attend, node: Node) -> str:
    """The axis of heads that a node sums numbers of pairs over; empty where it does not."""
    body, pairs = attend.body, {"batch", attend.reader.name, attend.read.name}
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


def _read(attend: ir.Attend, node: Node, wide: Node, others: list[Node]) -> WeightedSum | None:
    """The formula of what is summed; None where a part of it is none of pairs."""
    reading = Reading(attend, node)
    softmax = isinstance(wide.op, ir.Softmax)
    if softmax and (others or len(wide.operands) != 2):
        return None
    try:
        score = reading.of_weights(wide)
        for operand in others:
            score = Builder(reading.graph).fn("mul", reading.formula(operand), score)
    except NotWeightedSum:
        return None
    reading.graph.outputs["score"] = score
    reading.graph.prune()
    sources = tuple(reading.sources.values())
    reading.forget_unread()
    beside = reading.lookups or any(source.summed or not source.real for source in sources)
    between = reading.between is not None
    if beside or between or not reading.dots or reading.choice is not None:
        return None
    return WeightedSum(
        node.id, attend.reader, attend.read, reading.heads, sources, tuple(reading.dots),
        reading.graph, tuple(reading.bounds), softmax, values=None, sink=None,
    )  # fmt: skip
