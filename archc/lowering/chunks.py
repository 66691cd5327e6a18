"""Values between tokens, chunks and the rows of chunks as tiles."""

from __future__ import annotations

from dataclasses import replace

from archc.ir.graph import Node
from archc.ir.refusal import Refusal
from archc.lowering.algebra import kept, reduced
from archc.lowering.kernel_values import KernelValues
from archc.lowering.micro import steps_of
from archc.lowering.values import Index, Made, Place


def chunks(v: KernelValues, node: Node, place: Place) -> Made:
    """A value along the tokens, at the tokens of these rows; what is filled is not loaded."""
    op, operand = node.op, v.frame.graph[node.operands[0]]
    row, n = place[op.row.name], place[op.chunk.name].at
    at = {name: i for name, i in place.items() if name not in (op.chunk.name, op.row.name)}
    first = n * v.size(op.row.size)
    if op.steps is None:
        token = v.title(v.base + first, "first_t") + row.at
    else:
        steps = v.size(steps_of(op.row))
        every = v.title(v.base * steps + first, "first_r") + row.at
        token = every // steps
        at[op.steps] = Index(every % steps)
    inside = v.before_end(v.title(token, "t"))
    if row.mask is not None:
        inside = inside & row.mask
    inside = v.inside(op.stream, inside)
    at[op.stream] = Index(token, False, inside, None if row.whole else row)
    x = v.stored(operand.id, at)
    met = v.steps_met(node)
    if isinstance(x, Refusal) or met is not None:
        return x if met is None else met
    if row.label not in x.zero or op.fill:
        zero = x.zero if op.fill or row.label is None else x.zero | {row.label}
        x = replace(kept(v, x.wide() if op.fill else x, inside, float(op.fill)), zero=zero)
    off = frozenset({row.label} if op.fill and row.label else ())
    return replace(x, zero=x.zero - off, finite=x.finite - off)


def tokens(v: KernelValues, node: Node, place: Place) -> Made:
    """A value along the rows, at the rows of these tokens."""
    op, operand = node.op, v.frame.graph[node.operands[0]]
    t = place[op.stream.name]
    at = {name: index for name, index in place.items() if name != op.stream.name}
    if op.steps is not None and at.pop(op.steps.name).label not in (None, t.label):
        return v.refused(node, "all rows of a token")
    row = operand.type.axis(op.row)
    asked = (t.row or t).at.dims
    if asked and asked[0].length != v.length(row):
        return v.refused(node, "rows of tokens at those of another chunk")
    at[op.chunk] = v.indices[op.chunk]
    at[op.row] = t.row or v.whole(row).along(t.label or op.row)
    x = v.stored(operand.id, at)
    if isinstance(x, Refusal):
        return x
    off = frozenset({t.label} if t.label else ())
    return replace(x, zero=x.zero - off, finite=x.finite - off)


def block_sums(v: KernelValues, node: Node, place: Place) -> Made:
    """The sum over the program's block of the axis that is split."""
    operand = v.frame.graph[node.operands[0]]
    block = node.type.axes[-1].name
    if v.kernel.split is None or node.op.axis != v.kernel.split.name:
        return v.refused(node, f"sums of blocks of {node.op.axis}, which is not split")
    axis = operand.type.axis(node.op.axis)
    at = {name: index for name, index in place.items() if name != block}
    x = v.value(operand.id, {**at, axis.name: v.whole(axis)})
    return x if isinstance(x, Refusal) else reduced(v, x, (axis.name,), axes=[axis])


def at_last(v: KernelValues, node: Node, place: Place) -> Made:
    """A value at the last place of a stream, and 0 elsewhere."""
    op = node.op
    n = place[op.stream.name].at
    at = {name: index for name, index in place.items() if name != op.stream.name}
    x = v.value(node.operands[0], at)
    if isinstance(x, Refusal):
        return x
    first, behind = v.borders(op.stream)
    return kept(v, x, v.title(n.equals(first if op.reverse else behind - 1), "is_end"))


def last(v: KernelValues, node: Node, place: Place) -> Made:
    """The substitute for the last value of a stream that is empty."""
    return v.stored(node.operands[1], v.part(node.operands[1], place))


def result(v: KernelValues, node: Node, place: Place) -> Made:
    """A result of the inter-chunk scan at the program's chunk."""
    found = v.results.get((node.operands[0], node.op.name))
    if found is None:
        return v.refused(node, "a result of another kernel's walk")
    labelled = [name for name, index in place.items() if index.label]
    return v.not_whole(node, place, *labelled) or found
