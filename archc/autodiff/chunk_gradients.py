"""Gradients of chunk ops. Those between rows are made of the same ops: no new kernels."""

from __future__ import annotations

from dataclasses import replace

from archc.autodiff.gradient_builder import Builder, NoGradient
from archc.autodiff.regions import carries
from archc.autodiff.scans import of_rows, of_twin
from archc.autodiff.solutions import of_walked_solution
from archc.autodiff.tensor import contract
from archc.dims import Axis
from archc.ir import chunk as ck
from archc.ir import layer as ir
from archc.ir.graph import Node, Type
from archc.ir.shapes import arrange

Cotangents = list[int | None]


# --- between tokens and chunks ------------------------------------------------------------------


def chunks(b: Builder, node: Node, d: int) -> Cotangents:
    """y = x in chunks: dx = dy as tokens."""
    op, type = node.op, b.type(node.operands[0])
    steps = None if op.steps is None else type.axis(op.steps)
    back = ck.Tokens(op.chunk.name, op.row.name, type.axis(op.stream), steps)
    return [b.add(back, b.full(d, [op.chunk, op.row]))]


def tokens(b: Builder, node: Node, d: int) -> Cotangents:
    """y = x as tokens: dx = dy in chunks, 0 in the filling."""
    op, type = node.op, b.type(node.operands[0])
    inner = [axis for axis in type.axes if axis.kind == "dim"]
    place = [axis.name for axis in inner].index(op.row)
    outer = tuple(axis.name for axis in inner[:place])
    steps = None if op.steps is None else op.steps.name
    back = ck.Chunks(op.stream.name, type.axis(op.chunk), type.axis(op.row), 0, steps, outer)
    return [b.add(back, b.full(d, [op.stream, *([] if op.steps is None else [op.steps])]))]


def stack(b: Builder, node: Node, d: int) -> Cotangents:
    """y[n] = x_n: dx_n = dy[n]."""
    if node.op.axis.name not in b.names(d):
        return [d] * len(node.operands)
    return [b.add(ck.Select(node.op.axis.name, n), d) for n in range(len(node.operands))]


def select(b: Builder, node: Node, d: int) -> Cotangents:
    """y = x[n]: dx = dy at n, else 0."""
    axis = b.type(node.operands[0]).axis(node.op.axis)
    return [b.add(ck.Place(axis, node.op.index), d)]


def place(b: Builder, node: Node, d: int) -> Cotangents:
    """y = x at n, else 0: dx = dy[n]."""
    return [_at(b, d, node.op.axis.name, node.op.index)]


def _at(b: Builder, d: int, axis: str, index: int) -> int:
    """A value at an index; one without the axis is the same at all."""
    return b.add(ck.Select(axis, index), d) if axis in b.names(d) else d


# --- along a stream, and along further axes -----------------------------------------------------


def last(b: Builder, node: Node, d: int) -> Cotangents:
    """y = x at the last position, or e if there is none: dx = dy there, else 0; de = dy if there is
    none, else 0. The gradient of a Recurrence takes the cotangent of a state in the end to its
    start."""
    value, empty = node.operands
    stream = b.type(value).axis(node.op.stream)
    wide = Type((*node.type.axes, stream))
    found = b.fit(b.add(ck.AtLast(stream, node.op.reverse), d), wide, b.type(value))
    if carries(b.graph, node):
        return [found, None]
    nothing = b.add(ck.Expand((stream,)), b.zero())
    rest = b.add(node.op, nothing, d)
    return [found, b.fit(rest, node.type, b.type(empty))]


def at_last(b: Builder, node: Node, d: int) -> Cotangents:
    """y = x at the last position, else 0: dx = dy there; 0 if there is none."""
    stream = node.op.stream
    return [b.add(ck.Last(stream.name, node.op.reverse), b.full(d, [stream]), b.zero())]


def unwindow(b: Builder, node: Node, d: int) -> Cotangents:
    """The transpose of Window: dx = the runs of dy."""
    op, type = node.op, b.type(node.operands[0])
    blocks = None if op.blocks is None else type.axis(op.blocks)
    back = ir.Window(op.stream.name, type.axis(op.width), op.stride, blocks)
    return [b.add(back, b.full(d, [op.stream]))]


def expand(b: Builder, node: Node, d: int) -> Cotangents:
    """y = x along further axes: dx = the sum of dy over them."""
    return [b.fit(d, node.type, b.type(node.operands[0]))]


# --- along the rows of a chunk ------------------------------------------------------------------


def sums(b: Builder, node: Node, d: int) -> Cotangents:
    """y[i] = sum of x[j] over j <= i: dx[j] = sum of dy[i] over i >= j."""
    op = node.op
    back = replace(op, reverse=not op.reverse)
    return [b.add(back, b.full(d, [node.type.axis(op.axis)]))]


def move(b: Builder, node: Node, d: int) -> Cotangents:
    """y[i] = x[i - n]: dx[i] = dy[i + n], 0 where there is none."""
    op = node.op
    return [b.add(ck.Move(op.axis, -op.steps), b.full(d, [node.type.axis(op.axis)]))]


def scan(b: Builder, node: Node, d: int) -> Cotangents:
    """h[i] = a[i] h[i-1] + b[i]: the cotangents e[i] = dh[i] + a[i+1]^T e[i+1] are a scan the other
    way; db = e, da[i] = e[i] h[i-1]^T, dh[-1] = a[0]^T e[0]."""
    op, (a, added, first) = node.op, node.operands
    if op.kind != "linear":
        raise NoGradient(node, "a running maximum; let nothing but a Detach read it")
    if op.exclusive:
        second(b, node, d)
    found = of_twin(b, node, d) or of_rows(b, node, d)
    if found is not None:
        return found
    axis = node.type.axis(op.axis)
    back = a if op.matrix is None else _transposed(b, a, *op.matrix)
    later = b.add(ck.Move(op.axis, 1 if op.reverse else -1), back) if _has(b, a, op.axis) else back
    flow = replace(op, reverse=not op.reverse)
    e = b.add(flow, later, b.full(d, [axis, *_system(b, node)]), b.zeros(_start(b, node)))
    start = 0 if not op.reverse else -1
    begun = _applied(b, node, _at(b, back, op.axis, start), b.add(ck.Select(op.axis, start), e))
    kept = Type(tuple(x for x in node.type.axes if x != axis))
    return [
        _scan_factor(b, node, e, start),
        b.fit(e, node.type, b.type(added)),
        b.fit(begun, kept, b.type(first)),
    ]


def _has(b: Builder, id: int, axis: str) -> bool:
    return axis in b.names(id)


def _system(b: Builder, node: Node) -> list[Axis]:
    """The axis along which a scan's matrices act."""
    return [] if node.op.matrix is None else [node.type.axis(node.op.matrix[1])]


def _start(b: Builder, node: Node) -> Type:
    """The type of a scan's carried value, as far as a scan must see it."""
    return Type(tuple(_system(b, node)))


def _transposed(b: Builder, a: int, row: str, col: str) -> int:
    """A matrix with its rows as columns."""
    axes = b.type(a)
    return b.renamed(a, {row: axes.axis(col), col: axes.axis(row)})


def _applied(b: Builder, node: Node, a: int, e: int) -> int:
    """a e, a product with a matrix where the scan has one."""
    if node.op.matrix is None:
        return b.mul(a, e)
    row, col = node.op.matrix
    axis = b.type(e).axis(col)
    every = arrange(tuple(dict.fromkeys((*b.type(e).axes, *b.type(a).axes))))
    out = [(x.name, axis if x.name == row else x) for x in every if x.name != col]
    return b.contract([(a, b.names(a)), (e, b.names(e))], out)


def _scan_factor(b: Builder, node: Node, e: int, start: int) -> int:
    """da[i] = e[i] h[i-1]^T, summed over what a lacks."""
    op, (a, _, first) = node.op, node.operands
    moved = b.add(ck.Move(op.axis, -1 if op.reverse else 1), node.id)
    before = b.fn("add", moved, b.add(ck.Place(node.type.axis(op.axis), start), first))
    if op.matrix is None:
        return b.fit(b.mul(e, before), node.type, b.type(a))
    row, col = op.matrix
    rows = [row if name == col else name for name in b.names(e)]
    out = [(axis.name, axis) for axis in b.type(a).axes]
    return b.contract([(e, rows), (before, b.names(before))], out)


# --- between the rows of a chunk ----------------------------------------------------------------


def spans(b: Builder, node: Node, d: int) -> Cotangents:
    """y[i, j] = sum of g[r] over j < r <= i: dg[r] = the sum of dy[i, j] over i >= r > j."""
    op = node.op
    d = b.full(d, [node.type.axis(op.row), op.col])
    return [b.add(ck.SpansGradient(op.row, op.col.name, op.strict, op.exclusive), d)]


def second(b: Builder, node: Node, d: int) -> Cotangents:
    """An op of gradients: it is not differentiated again."""
    raise NoGradient(node, "it is made for first derivatives, which are not differentiated again")


def gram(b: Builder, node: Node, d: int) -> Cotangents:
    """A[i, j] = a[i] e^span[i, j] b[j]: da[i] = sum over j of dA e^span b[j],
    db[j] = sum over i of dA e^span a[i]: two Mix; dg is a GateGradient."""
    op, (left, right, gate) = node.op, node.operands
    row = node.type.axis(op.row)
    d = b.full(d, [row, op.col])
    to_left = ck.Mix(op.row, op.col.name, op.strict, op.exclusive, False, op.anchor)
    to_right = replace(to_left, transpose=True)
    to_gate = ck.GateGradient(op.row, op.col.name, op.strict, op.exclusive, op.anchor)
    return [
        _narrow(b, b.add(to_left, d, right, gate), left),
        _narrow(b, b.add(to_right, d, left, gate), right),
        b.add(to_gate, d, left, right, gate),
    ]


def mix(b: Builder, node: Node, d: int) -> Cotangents:
    """o[i] = sum over j of A[i, j] e^span b[j]: dA[i, j] = do[i] e^span b[j], a Gram over the dims
    that A lacks; db[j] = sum over i of A e^span do[i], a Mix; dg is a GateGradient. With
    `transpose` the roles of do and b are exchanged."""
    op, (weights, value, gate) = node.op, node.operands
    axes = b.type(weights)
    d = b.full(d, [node.type.axis(op.row)])
    left, right = (value, d) if op.transpose else (d, value)
    every = dict.fromkeys((*b.names(left), *b.names(right), *b.names(gate)))
    over = tuple(name for name in every if name not in axes.names)
    to_weights = ck.Gram(over, op.row, axes.axis(op.col), op.strict, op.exclusive, op.anchor)
    to_gate = ck.GateGradient(op.row, op.col, op.strict, op.exclusive, op.anchor)
    return [
        b.add(to_weights, left, right, gate),
        _narrow(b, b.add(replace(op, transpose=not op.transpose), weights, d, gate), value),
        b.add(to_gate, weights, left, right, gate),
    ]


def _narrow(b: Builder, d: int, operand: int) -> int:
    """A cotangent, summed over the axes that its operand lacks."""
    return b.reduce(d, [name for name in b.names(d) if name not in b.names(operand)])


def inverse(b: Builder, node: Node, d: int) -> Cotangents:
    """T = (I - A)^-1: dA = T^T dT T^T below the diagonal. Of what arrives from a product Y = T R,
    that is dR Y^T, as dR = T^T dY is known."""
    op = node.op
    row, col = node.type.axis(op.row), node.type.axis(op.col)
    found, rest = [], []
    for term in b.addends(d):
        solved = _of_solution(b, node, term)
        solved = of_walked_solution(b, node, term) if solved is None else solved
        (rest if solved is None else found).append(term if solved is None else solved)
    if rest:
        found.append(_between(b, node, b.full(b.sum(rest), [row, col])))
    source = b.graph[node.operands[0]].op
    if isinstance(source, ck.Gram) and source.strict:  # looks at nothing else
        return [b.sum(found)]
    below = b.fn("lt", b.add(ir.Position(col)), b.add(ir.Position(row)))
    return [b.fn("where", below, b.sum(found), b.number(0))]


def _between(b: Builder, node: Node, d: int) -> int:
    """T^T d T^T."""
    op = node.op
    row, col = node.type.axis(op.row), node.type.axis(op.col)
    p, q = f"{row.name}'", f"{col.name}'"  # labels of what is summed
    d_labels = [{row.name: p, col.name: q}.get(name, name) for name in b.names(d)]
    first = [{row.name: p, col.name: row.name}.get(name, name) for name in node.type.names]
    last = [{row.name: col.name, col.name: q}.get(name, name) for name in node.type.names]
    batch = [axis for axis in node.type.axes if axis not in (row, col)]
    half = b.contract(
        [(node.id, first), (d, d_labels)],
        [*((axis.name, axis) for axis in batch), (row.name, row), (q, col)],
    )
    half_labels = [q if name == col.name else name for name in b.names(half)]
    return b.contract(
        [(half, half_labels), (node.id, last)],
        [(axis.name, axis) for axis in node.type.axes],
    )


def _of_solution(b: Builder, node: Node, term: int) -> int | None:
    """dY R^T -> dR Y^T, for a product Y = T R of a node T, if the cotangent is of that form."""
    for id in (id for id in b.graph.users(node.id) if _is_product(node, b.graph[id])):
        product = b.graph[id]
        at = product.operands.index(node.id)
        for d in b.graph[term].operands:
            if not set(b.names(d)) <= set(product.type.names):
                continue
            found = contract(b, product, d)
            right = found[1 - at]
            if found[at] == term and right is not None:
                return _outer(b, node, product, right)
    return None


def _is_product(node: Node, product: Node) -> bool:
    """Whether a node is T R for a matrix T of rows and columns, summed over the columns, which R
    has, as all of T's other axes but the rows."""
    if not isinstance(product.op, ir.Contract) or len(product.operands) != 2:
        return False
    if product.operands.count(node.id) != 1:
        return False
    at = product.operands.index(node.id)
    labels, others = product.op.ins[at], product.op.ins[1 - at]
    row, col = (labels[node.type.names.index(name)] for name in (node.op.row, node.op.col))
    out = {label for label, _ in product.op.out}
    once = len(set(labels)) == len(labels) and len(set(others)) == len(others)
    kept = {*labels} - {col} <= out and col not in out
    return once and kept and {*labels} - {row} <= {*others} and row not in others


def _outer(b: Builder, node: Node, product: Node, d: int) -> int:
    """dR Y^T: its rows are those of R, its columns those of Y."""
    at = product.operands.index(node.id)
    labels, others = product.op.ins[at], product.op.ins[1 - at]
    row, col = (labels[node.type.names.index(name)] for name in (node.op.row, node.op.col))
    of_right = dict(zip(b.names(product.operands[1 - at]), others, strict=True))
    of_d = [row if of_right[name] == col else of_right[name] for name in b.names(d)]
    of_y = [col if label == row else label for label, _ in product.op.out]
    out = list(zip(labels, node.type.axes, strict=True))
    return b.contract([(d, of_d), (product.id, of_y)], out)
