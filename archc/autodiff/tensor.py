"""Gradients of tensor ops: sums, contractions, reads by index, and ops along a sequence."""

from __future__ import annotations

from collections.abc import Sequence

import sympy

from archc.autodiff.gradient_builder import Builder, NoGradient
from archc.dims import Axis
from archc.ir import chunk as ck
from archc.ir import layer as ir
from archc.ir.graph import Node, Type

Cotangents = list[int | None]


def nothing(b: Builder, node: Node, d: int) -> Cotangents:
    """An op that no gradient passes: dx = 0 for every operand."""
    return [None] * len(node.operands)


# --- reductions ---------------------------------------------------------------------------------


def reduce(b: Builder, node: Node, d: int) -> Cotangents:
    """y = sum x: dx = dy. Mean: dx = dy / count. Max, min: dy, divided among the equal largest.
    Product: dy times the product of the others. Of log sum exp: dy, divided as by a softmax."""
    if node.op.fn == "sum" or not node.op.axes:
        return [d]
    rules = {"mean": _mean, "max": _extreme, "min": _extreme, "prod": _product}
    return [{**rules, "logsumexp": _shared}[node.op.fn](b, node, d)]


def _mean(b: Builder, node: Node, d: int) -> int:
    """y = sum x / n: dx = dy / n."""
    whole = b.type(node.operands[0])
    count = sympy.Mul(*(whole.axis(name).size for name in node.op.axes))
    return b.fn("div", d, b.number(count))


def _extreme(b: Builder, node: Node, d: int) -> int:
    """y = max x: dx = dy / (how many are y) where x is y, else 0."""
    chosen = b.fn("eq", node.operands[0], node.id)
    count = b.reduce(b.fn("real", chosen), node.op.axes)
    return b.fn("where", chosen, b.fn("div", d, count), b.number(0))


def _product(b: Builder, node: Node, d: int) -> int:
    """y = prod x: dx = dy * y / x. With one x = 0, it alone gets the product of the others."""
    x, one, zero = node.operands[0], b.number(1), b.number(0)
    empty = b.fn("eq", x, zero)
    safe = b.fn("where", empty, one, x)
    count = b.reduce(b.fn("real", empty), node.op.axes)
    whole = b.reduce(safe, node.op.axes, "prod")
    alone = b.fn("and", empty, b.fn("eq", count, one))
    others = b.fn("where", b.fn("eq", count, zero), b.fn("div", whole, safe), zero)
    return b.mul(b.fn("where", alone, whole, others), d)


def _shared(b: Builder, node: Node, d: int) -> int:
    """y = log sum exp x: dx = dy exp(x - y), 0 where all x are -inf, as y is then."""
    known = b.fn("gt", node.id, b.number(-sympy.oo))
    total = b.fn("where", known, node.id, b.number(0))
    return b.mul(b.fn("exp", b.fn("sub", node.operands[0], total)), d)


# --- contractions -------------------------------------------------------------------------------


def contract(b: Builder, node: Node, d: int) -> Cotangents:
    """y = sum of a b: da = sum of dy b over the labels that a lacks; db = sum of dy a."""
    called = {axis.name: label for label, axis in node.op.out}
    cotangent = d, tuple(called[name] for name in b.names(d))
    found: Cotangents = []
    for place, operand in enumerate(node.operands):
        if operand not in b.active:
            found.append(None)
            continue
        others = [
            (other, labels)
            for at, (other, labels) in enumerate(zip(node.operands, node.op.ins, strict=True))
            if at != place
        ]
        found.append(_factor(b, b.type(operand), node.op.ins[place], [cotangent, *others]))
    return found


def _factor(
    b: Builder, type: Type, labels: Sequence[str], others: list[tuple[int, tuple[str, ...]]]
) -> int:
    """The cotangent of a factor, whose axes have these labels, from the other factors."""
    there = {label for _, others_labels in others for label in others_labels}
    first: dict[str, Axis] = {}
    diagonals: list[tuple[Axis, Axis]] = []
    for label, axis in zip(labels, type.axes, strict=True):
        if label in first:
            diagonals.append((first[label], axis))
        first.setdefault(label, axis)
    out = [(label, axis) for label, axis in first.items() if label in there]
    value = b.contract(others, out)
    for row, col in diagonals:
        value = b.mul(value, b.add(ir.Delta(row, col)))
    return value


# --- reads by index -----------------------------------------------------------------------------


def gather(b: Builder, node: Node, d: int) -> Cotangents:
    """y[n] = x[i[n]]: dx[k] = the sum of dy[n] over those n whose i[n] is k."""
    value, index = node.operands
    axis = b.type(value).axis(node.op.axis)
    new = [a for a in b.type(index).axes if a.name not in b.names(value) or a.name == axis.name]
    number = b.value(index)
    if number is not None and number.is_Integer:
        return [b.add(ck.Place(axis, int(number)), d), None]
    if len(new) == len(b.names(index)) == 1:
        scatter = ir.Scatter(new[0].name, axis)
        return [b.add(scatter, b.full(d, new), index), None]
    return [_spread(b, node, d, axis), None]


def _spread(b: Builder, node: Node, d: int, axis: Axis) -> int:
    """dx as a contraction of dy with 1 where the index is the position, else 0."""
    value, index = node.operands
    position = axis.renamed(axis.name + "'")
    hit = b.fn("real", b.fn("eq", b.add(ir.Position(position)), index))
    there = dict.fromkeys((*b.names(d), *b.names(hit)))
    axes = [position if a == axis else a for a in b.type(value).axes]
    out = [(a.name, axis if a == position else a) for a in axes if a.name in there]
    return b.contract([(d, b.names(d)), (hit, b.names(hit))], out)


def scatter(b: Builder, node: Node, d: int) -> Cotangents:
    """y[k] = sum of x[n] with i[n] = k: dx[n] = dy[i[n]], 0 where i[n] is no position of y."""
    index, into, zero = node.operands[1], node.op.into, b.number(0)
    last = b.number(into.size - 1)
    inside = b.fn("and", b.fn("ge", index, zero), b.fn("le", index, last))
    safe = b.fn("where", inside, index, zero)
    read = b.add(ir.Gather(into.name), b.full(d, [into]), safe)
    return [b.fn("where", inside, read, zero), None]


# --- dims joined, and counted otherwise ----------------------------------------------------------


def join(b: Builder, node: Node, d: int) -> Cotangents:
    """y = the entries of x1, then those of x2: each dx is its run of dy."""
    into, start = node.op.into, sympy.Integer(0)
    whole = b.full(d, [into])
    found: Cotangents = []
    for name, operand in zip(node.op.axes, node.operands, strict=True):
        axis = b.type(operand).axis(name)
        at = b.fn("add", b.add(ir.Position(axis)), b.number(start))
        part = b.add(ir.Gather(into.name), whole, at)
        wide = Type(tuple(axis if a == into else a for a in node.type.axes))
        found.append(b.fit(part, wide, b.type(operand)))
        start += axis.size
    return found


def reshape(b: Builder, node: Node, d: int) -> Cotangents:
    """y counts the entries of x otherwise: dx counts those of dy as x does."""
    back = tuple(b.type(node.operands[0]).axis(name) for name in node.op.axes)
    names = tuple(axis.name for axis in node.op.into)
    return [b.add(ir.Reshape(names, back), b.full(d, node.op.into))]


# --- linear systems -----------------------------------------------------------------------------


def solve(b: Builder, node: Node, d: int) -> Cotangents:
    """A z = b: db = A^-T dz, dA = -db z^T."""
    op, (matrix, vector) = node.op, node.operands
    axes = b.type(matrix)
    row, col = axes.axis(op.row), axes.axis(op.col)
    transposed = b.renamed(matrix, {row.name: col, col.name: row})
    y = b.add(op, transposed, b.full(d, [row]))
    product = b.neg(b.mul(y, b.renamed(node.id, {row.name: col})))
    wide = Type((*node.type.axes, col))
    return [b.fit(product, wide, axes), b.fit(y, node.type, b.type(vector))]


# --- along a sequence ---------------------------------------------------------------------------


def shift(b: Builder, node: Node, d: int) -> Cotangents:
    """y[t] = x[t - n]: dx[t] = dy[t + n]."""
    axis = node.type.axis(node.op.stream)
    return [b.add(ck.Move(axis.name, -node.op.steps), b.full(d, [axis]))]


def window(b: Builder, node: Node, d: int) -> Cotangents:
    """y[t, w] = x[t - W + 1 + w]: dx[t] = the sum of dy at the places (t, w) that read it."""
    op = node.op
    runs = op.blocks or node.type.axis(op.stream)
    stream = b.type(node.operands[0]).axis(op.stream)
    blocks = None if op.blocks is None else op.blocks.name
    back = ck.Unwindow(stream, op.width.name, op.stride, blocks)
    return [b.add(back, b.full(d, [runs, op.width]))]


def softmax(b: Builder, node: Node, d: int) -> Cotangents:
    """p = softmax(x): dx = p (dp - sum p dp). The sink's weight is p' = 1 - sum p:
    dx' = -p' sum p dp."""
    scores, _, *sink = node.operands
    over = {node.op.over}
    mean = b.reduce(b.mul(node.id, d), over)
    found = b.fit(b.mul(node.id, b.fn("sub", d, mean)), node.type, b.type(scores))
    if not sink:
        return [found, None]
    rest = b.fn("sub", b.number(1), b.reduce(node.id, over))
    kept = Type(tuple(a for a in node.type.axes if a.name not in over))
    return [found, None, b.fit(b.neg(b.mul(rest, mean)), kept, b.type(sink[0]))]


def segment(b: Builder, node: Node, d: int) -> Cotangents:
    """y[t, s] = sum of x[r] over s < r <= t: dx[r] = the sum of dy[t, s] over s < r <= t."""
    op = node.op
    if op.kind != "sum":
        raise NoGradient(node, "a product along a path; write it as the exponential of a sum")
    path = b.type(node.operands[0]).axis(op.path)
    d = b.full(d, [op.reader, op.read])
    if op.reader.name not in b.names(node.operands[0]):
        between = b.add(ck.SpansGradient(op.reader.name, op.read.name), d)
        return [b.renamed(between, {op.reader.name: path})]
    before = b.renamed(b.add(ck.Sums(op.read.name, exclusive=True), d), {op.read.name: path})
    reached = b.fn("le", b.add(ir.Position(path)), b.add(ir.Position(op.reader)))
    return [b.fn("where", reached, before, b.number(0))]


def substitute(b: Builder, node: Node, d: int) -> Cotangents:
    """z = A z + b: db solves the transposed system, from the last token on, and dA is db z^T where
    the token read is an earlier one."""
    op, (weights, right) = node.op, node.operands
    time, read = node.type.axis("t"), b.type(weights).axis(op.read)
    transposed = b.renamed(weights, {time.name: read, read.name: time})
    back = ir.Substitute(op.read, reverse=not op.reverse)
    y = b.add(back, transposed, b.full(d, node.type.axes))
    positions = [b.add(ir.Position(axis)) for axis in (time, read)]
    there = b.fn("lt" if op.reverse else "gt", *positions)
    product = b.mul(y, b.renamed(node.id, {time.name: read}))
    made = b.fn("where", there, product, b.number(0))
    wide = Type((*node.type.axes, read))
    return [b.fit(made, wide, b.type(weights)), b.fit(y, node.type, b.type(right))]
