"""Sums, moves and scans along the rows of a chunk, and spans between them, as tiles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import log

from sympy import Integer

from archc.dims import Axis
from archc.ir import chunk as ck
from archc.ir import layer as ir
from archc.ir.graph import Node
from archc.ir.refusal import Refusal
from archc.lowering.algebra import counted, masked_at
from archc.lowering.row_decays import limit_of
from archc.lowering.scans import moved as moved_rows
from archc.lowering.systems import matrix_scan
from archc.lowering.values import Index, Made, Padded, Place, Values
from archc.tile.compose import Composer
from archc.tile.handle import Tile
from archc.tile.language import OF_BUFFER, Dim

NEVER = float("-inf")


def moved(v: Values, node: Node, place: Place, axis: str, steps: int, fill: float = 0.0) -> Made:
    """A value `steps` rows earlier: made there, or moved where it looks across the rows."""
    operand = node.operands[0]
    index, along = place[axis], v.frame.graph[operand].type.axis(axis)
    first, behind = v.borders(along)
    there = index.at - steps if steps > 0 else index.at + -steps
    known = there >= first if steps > 0 else there < behind
    if steps > 0 and index.mask is not None and along.size != ck.CHUNK:
        known = known & index.mask  # the block of several rows a token may be longer than these
    inside = v.inside(axis, known)
    own = v.part(operand, place)
    x = v.value(operand, {**own, axis: Index(there, False, inside)})
    if isinstance(x, Refusal):
        if not x.moved or index.label is None:
            return x
        x = v.value(operand, own)
        return x if isinstance(x, Refusal) else _turned(v, x, index, there, inside, fill)
    if index.label is not None and (
        index.label not in x.labels or (index.label in x.zero and not fill)
    ):
        return x
    return masked_at(v, x, inside, fill)


def _turned(v: Values, x: Padded, index: Index, there: Tile, inside: Tile, fill: float) -> Padded:
    """A tile's elements from other rows; `fill` where those are not inside."""
    label = str(index.label)
    if label not in x.labels:
        x = v.over(x, (*index.at.dims, *x.tile.dims))
    at = v.k.where(inside, there, v.k.lift(0, "i32")).over(*x.tile.dims)
    picked = replace(x, tile=x.tile.pick(at, label), zero=x.zero - {label})
    return masked_at(v, picked, inside, fill)


def move(v: Values, node: Node, place: Place) -> Made:
    """The value some rows earlier or later."""
    op = node.op
    return moved(v, node, place, op.axis, op.steps, float(op.fill))


def sums(v: Values, node: Node, place: Place) -> Made:
    """Running sums along the rows."""
    op, operand = node.op, node.operands[0]
    refused = v.not_whole(node, place, op.axis)
    if refused is not None:
        return refused
    after = op.exclusive and _is_product(v, operand)
    if op.exclusive and not after:
        x = moved(v, node, place, op.axis, -1 if op.reverse else 1)
    else:
        x = v.stored(operand, place) if op.gates else v.value(operand, place)
    if isinstance(x, Refusal):
        return x
    if op.axis not in x.labels:
        x = v.over(x, (*place[op.axis].at.dims, *x.tile.dims))
    if after and _of_signed(v):
        x, after = replace(x, tile=moved_rows(v.k, x.tile, op.axis, -1 if op.reverse else 1)), False
    added = x.tile
    if op.gates:
        added = _of_gates(v, added.to("f32"))
    if op.gates and len(x.labels) == 2 and x.tile.dtype.startswith(OF_BUFFER) and not after:
        x, made = x.wide(), _gates_exactly(v, added, x.tile.dtype, op)
    elif len(x.labels) == 2 and not op.gates and _is_product(v, operand):
        other = next(label for label in x.labels if label != op.axis)
        x = replace(x.ordered(op.axis, other), product=True)
        added = x.tile
        made = _by_products(v, added, op.axis, op.reverse)
    else:
        made = added.scan("sum", op.axis, op.reverse)
    if after:  # a product at moved rows would be made twice
        made = made - added
    off = {op.axis}
    zero, finite = x.zero - off, x.finite - off
    return replace(x, tile=made, zero=zero, finite=finite, number=None, stored=False)


def _of_signed(v: Values) -> bool:
    """Whether gates may be 0, by whose size their gradient is divided: a row that is subtracted
    from its own sum would leave its digits there."""
    gates = (node.op for node in v.frame.graph if isinstance(node.op, ck.GateGradient))
    return any(op.signed for op in gates)


def rest(v: Values, node: Node, place: Place) -> Made:
    """The last of running sums less that of each row, in the dtype of the sums."""
    op, operand = node.op, node.operands[0]
    refused = v.not_whole(node, place, op.axis)
    if refused is not None:
        return refused
    axis = v.frame.graph[operand].type.axis(op.axis)
    at_last = counted(v, axis, -1)
    x, last = v.stored(operand, place), v.stored(operand, {**place, op.axis: Index(at_last)})
    if isinstance(x, Refusal):
        return x
    if isinstance(last, Refusal):
        last = Padded(_last(v, x.tile, axis))
    left = v.k.apply("sub", last.tile, x.tile, dims_in=x.labels).to("f32")
    return replace(x, tile=left, stored=False, number=None)


def less(v: Values, node: Node, place: Place) -> Made:
    """Running sums less a number that all rows have, in the dtype of the sums."""
    operand, other = node.operands
    axis, last = v.frame.graph[operand].type.axis(node.op.axis), node.op.last
    refused = None if last else v.not_whole(node, place, axis.name)
    if refused is not None:
        return refused
    whole = {**place, axis.name: v.whole(axis)} if last else place
    x, by = v.stored(operand, whole), v.value(other, v.part(other, place))
    if isinstance(x, Refusal):
        return x
    if isinstance(by, Refusal):
        return by
    number = by.tile.to(x.tile.dtype)
    if last:
        x = replace(x, tile=_last(v, x.tile, axis))
    left = v.k.apply("sub", x.tile, number, dims_in=x.labels).to("f32")
    return replace(x, tile=left, stored=False, number=None)


def middle(v: Values, node: Node, place: Place) -> Made:
    """Half of the last of running sums, or a number that says that some are far from it."""
    operand, k = node.operands[0], v.k
    axis = v.frame.graph[operand].type.axis(node.op.axis)
    x = v.stored(operand, {**place, axis.name: v.whole(axis)})
    if isinstance(x, Refusal):
        return x
    last = _last(v, x.tile, axis).to("f32")
    powers = k.apply("floor", last * (0.5 / log(2)) + 0.5)
    k.noted(powers, "in whole logarithms of 2, whose exp is exact")
    half = v.title(powers * log(2), "half")
    span = k.apply("abs", k.apply("sub", x.tile, half.to(x.tile.dtype), dims_in=x.labels))
    near = span.to("f32").max(axis.name) <= limit_of(v.numbers.operand, k)
    found = k.noted(k.where(near, half, float(ck.FAR)), f"{ck.FAR}: some sums are far from it")
    return replace(x, tile=found, stored=False, number=None)


def _last(v: Values, x: Tile, axis: Axis) -> Tile:
    """The last of the rows of a tile."""
    chosen = v.whole(axis).at.equals(counted(v, axis, -1))
    return v.k.where(chosen, x, v.like(0.0, x)).sum(axis.name)


STORED = 4
"""Beside how many tiles [row, dim] that a kernel stores gates are summed by a scan that is made
once: with five, in a program of 128 registers a thread, 264 bytes are spilled."""


def _gates_exactly(v: Values, x: Tile, dtype: str, op: ck.Sums) -> Tile:
    """Running sums of gates [row, dim] where memory has the gates in bfloat16, a `dtype` of the
    launch, and their sums are in float32. Triton would scan twice, once for the layout of what is
    stored so wide, as it moves the change of layouts to where numbers are narrow: not past a sum
    along a dim of length 1. With more tiles beside it, a product with a triangle of ones, which is
    exact, too."""
    k, dims = v.k, x.value.type.names
    other = next(label for label in dims if label != op.axis)
    stored = sum(v.is_stored(n.id) and {*dims} <= {*n.type.names} for n in v.frame.graph)
    with k.branch(_is_exact(v, dtype)) as exact:
        if 0 < stored <= STORED:
            made = x.scan("sum", op.axis, op.reverse)
            made = made.over(*made.dims, Dim("one", Integer(1))).sum("one")
        else:
            gates = x.ordered(op.axis, other).to("bf16").along(**{op.axis: f"{op.axis}'"})
            made = _ones(k, x.dim(op.axis), op.reverse).dot(gates)
        exact.give(made.ordered(*dims).to(x.dtype))
    with k.otherwise(exact) as rounded:
        rounded.give(x.scan("sum", op.axis, op.reverse))
    return exact.results[0].named("gate_sums")


def _is_exact(v: Values, dtype: str) -> Tile:
    """Whether sums of gates are exact where these are multiplied in bfloat16."""
    return v.k.chosen(v.numbers.sums, "f32") & v.k.chosen(dtype, "bf16")


def log_gates(v: Values, sums: Node, labels: tuple[str, str]) -> tuple[Tile, Tile] | None:
    """Log gates as they are summed, [row, dim], and whether products of them in bfloat16 are exact;
    None where a kernel does not read them from memory."""
    x = v.stored(sums.operands[0]) if sums.op.gates and not sums.op.reverse else None
    if not isinstance(x, Padded) or not x.tile.dtype.startswith(OF_BUFFER):
        return None
    return _of_gates(v, x.ordered(*labels).tile.to("f32")), _is_exact(v, x.tile.dtype)


def _ones(k: Composer, rows: Dim, reverse: bool) -> Tile:
    """1 where a row is summed at another one [row, row']."""
    row = k.iota(rows.name, rows.length)
    column = row.along(**{rows.name: f"{rows.name}'"})
    return k.where(column >= row if reverse else row >= column, 1.0, 0.0).to("bf16")


def _by_products(v: Values, x: Tile, axis: str, reverse: bool) -> Tile:
    """Running sums of x [axis, dim] that comes from products, as a product with a triangle of ones:
    its rows lie across threads, where a scan is many steps. Of data in 16 bits, whose sums need not
    be in float32: x is taken as two numbers of bfloat16, 16 of its 24 bits."""
    k, summed = v.k, {axis: f"{axis}'"}
    with k.branch(k.chosen(v.numbers.operand, "f32")) as whole:
        whole.give(x.scan("sum", axis, reverse))
    with k.otherwise(whole) as parts:
        ones = _ones(k, x.dim(axis), reverse)
        first = x.to("bf16")
        rest = (x - first.to("f32")).to("bf16")
        made = ones.dot(first.along(**summed))
        parts.give(ones.dot(rest.along(**summed), made))
    return whole.results[0]


def _is_product(v: Values, id: int) -> bool:
    """Whether a value is made here from a product of matrices."""
    graph, stack = v.frame.graph, [id]
    while stack:
        node = graph[stack.pop()]
        if v.is_loaded(node.id):
            continue
        if ir.is_product(node.op) or isinstance(node.op, ck.Mix | ck.JointPairs):
            return True
        stack += node.operands
    return False


# --- between rows -------------------------------------------------------------------------------


def spans(v: Values, node: Node, place: Place) -> Made:
    """Sums of gates from each column on to each row. If only exp is wanted of them they are
    differences of running sums: of gates that are no less than exp tells; else each is a sum of its
    own."""
    op = node.op
    row, col = op.row, op.col.name
    refused = v.not_whole(node, place, row, col)
    if refused is not None:
        return refused
    g = v.value(node.operands[0], v.part(node.operands[0], place))
    if isinstance(g, Refusal):
        return g
    if g.labels != (row,):
        return v.refused(node, "spans of several dims")
    i, j = place[row].at, place[col].at
    if _only_in_exp(v, node):
        total = _difference(v, g.tile, row, col, op.exclusive)
    else:
        if op.exclusive:
            g = moved(v, node, v.part(node.operands[0], place), row, 1)
            if isinstance(g, Refusal):
                return g
        after = (i - 1 if op.exclusive else i) > j
        total = v.k.where(after, g.tile, 0.0).scan("sum", row)
    v.see(row, col)
    seen = i > j if op.strict or op.exclusive else i >= j
    return Padded(v.k.apply("where", seen, total, NEVER, dims_in=(row, col)))


def differences(v: Values, node: Node, place: Place) -> Made:
    """Running sums at each row less those at each column, in the dtype of the sums."""
    op, operand = node.op, node.operands[0]
    row, col = op.row, op.col.name
    refused = v.not_whole(node, place, row, col)
    if refused is not None:
        return refused
    x = v.stored(operand, v.part(operand, place))
    if isinstance(x, Refusal):
        return x
    if x.labels != (row,):
        return v.refused(node, "spans of several dims")
    i, j = place[row].at, place[col].at
    between = v.k.apply("sub", x.tile, x.tile.along(**{row: col}), dims_in=(row, col)).to("f32")
    v.see(row, col)
    seen = i > j if op.strict else i >= j
    return Padded(v.k.apply("where", seen, between, NEVER, dims_in=(row, col)))


def _of_gates(v: Values, g: Tile) -> Tile:
    """Log gates as they are summed where differences of sums are wanted."""
    least = v.k.noted(v.k.apply("max", g, ck.LEAST_GATE), f"exp of {ck.LEAST_GATE:.0f} is 0")
    return least.to(v.numbers.sums)


def _only_in_exp(v: Values, node: Node) -> bool:
    """Whether nothing but exp is wanted of a value."""
    graph = v.frame.graph
    users = [graph[user].op for user in graph.users(node.id)]
    return all(isinstance(op, ir.Elementwise) and op.fn == "exp" for op in users)


def _difference(v: Values, g: Tile, row: str, col: str, exclusive: bool) -> Tile:
    """The spans of all pairs as differences."""
    gates = _of_gates(v, g)
    total = v.title(gates.scan("sum", row), "gate_sums")
    until = total - gates if exclusive else total
    return v.k.apply("sub", until, total.along(**{row: col}), dims_in=(row, col)).to("f32")


def spans_gradient(v: Values, node: Node, place: Place) -> Made:
    """At r the sum over i >= r > j: a pair counts from its later row on, to its earlier one."""
    op, operand = node.op, v.frame.graph[node.operands[0]]
    refused = v.not_whole(node, place, op.row)
    if refused is not None:
        return refused
    col = v.whole(operand.type.axis(op.col))
    x = v.value(operand.id, {**place, op.col: col})
    if isinstance(x, Refusal):
        return x
    below = place[op.row].at > col.at
    kept = v.k.apply("where", below, x.tile, 0.0, dims_in=(op.row, op.col)).to(v.numbers.sums)
    later = kept.sum(op.col)
    total = (later - kept.sum(op.row).along(**{op.col: op.row})).scan("sum", op.row, True)
    total = total - later if op.exclusive else total
    return Padded(total.to("f32"))


# --- scans --------------------------------------------------------------------------------------


def scan(v: Values, node: Node, place: Place) -> Made:
    """h[i] = a[i] h[i - 1] + b[i], or max(a[i] + h[i - 1], b[i]), for numbers."""
    op: ck.Scan = node.op
    if op.matrix is not None:
        return matrix_scan(v, node, place)
    refused = v.not_whole(node, place, op.axis)
    if refused is not None:
        return refused
    given = v.operands(node, place)
    if isinstance(given, Refusal):
        return given
    if not (op.reverse and v.has_rows):
        return _scanned(v, node, place, given, op.reverse)
    made = _scanned(v, node, place, [_turned_around(x, op.axis) for x in given], False)
    return _turned_around(made, op.axis)


def _turned_around(x: Padded, axis: str) -> Padded:
    """A tile with its rows in the other order: where a thread has all of them, no instruction."""
    return replace(x.wide(), tile=x.wide().tile.flip(axis)) if axis in x.labels else x


def _scanned(v: Values, node: Node, place: Place, given: Sequence[Padded], reverse: bool) -> Padded:
    """A scan of tiles."""
    op: ck.Scan = node.op
    a, b, first = (x.wide() for x in given)
    labels = v.joined(a, b, first)
    labels = labels if op.axis in labels else (op.axis, *labels)
    dims = _dims(place, (a, b, first), labels)
    factors, added = (v.over(x, dims).tile for x in (a, b))
    start = v.over(first, [dim for dim in dims if dim.name in first.labels]).tile
    if op.kind == "max-plus":
        factor, scanned = v.k.scan(_max_plus, op.axis, factors, added, reverse=reverse)
        return Padded(v.k.apply("max", factor + start, scanned))
    if op.kind == "max-times":
        factor, scanned = v.k.scan(_max_times, op.axis, factors, added, reverse=reverse)
        return Padded(v.k.apply("max", factor * start, scanned))
    if b.number == 0 and first.number == 1 and not op.exclusive:
        return Padded(factors.scan("product", op.axis, reverse))
    length = v.k.lift(v.length(node.type.axis(op.axis)), "i32")
    begin = place[op.axis].at.equals(length - 1 if reverse else v.k.lift(0, "i32"))
    if first.number != 0:
        moved = v.k.apply("mul", factors, start, dims_in=labels) + added
        added = v.k.apply("where", begin, moved, added, dims_in=labels)
    if not op.exclusive:
        return Padded(v.k.scan(_linear, op.axis, factors, added, reverse=reverse)[1])
    one, nothing = v.k.full(1.0, *dims), v.k.full(0.0, *dims)
    given_ = factors, added, one, nothing
    before = v.k.scan(_with_before, op.axis, *given_, reverse=reverse)[3]
    return Padded(v.k.apply("where", begin, start, before, dims_in=labels))


def _dims(place: Place, given: tuple[Padded, ...], labels: tuple[str, ...]) -> list[Dim]:
    """The dims of some tiles and of a place by their names."""
    found = {dim.name: dim for index in place.values() for dim in index.at.dims}
    found |= {dim.name: dim for x in given for dim in x.tile.dims}
    return [found[label] for label in labels]


def _linear(x: tuple[Tile, ...], y: tuple[Tile, ...]) -> tuple[Tile, ...]:
    """h -> a h + b, and then h -> a' h + b'."""
    return x[0] * y[0], x[1] * y[0] + y[1]


def _with_before(x: tuple[Tile, ...], y: tuple[Tile, ...]) -> tuple[Tile, ...]:
    """The same, and h before the last element: of a single element that is h itself, 1 h + 0."""
    return (*_linear(x[:2], y[:2]), x[0] * y[2], x[1] * y[2] + y[3])


def _max_times(x: tuple[Tile, ...], y: tuple[Tile, ...]) -> tuple[Tile, ...]:
    """h -> max(a h, b), and then h -> max(a' h, b'), for a' >= 0."""
    return x[0] * y[0], x[0].composer.apply("max", x[1] * y[0], y[1])


def _max_plus(x: tuple[Tile, ...], y: tuple[Tile, ...]) -> tuple[Tile, ...]:
    """h -> max(a + h, b), and then h -> max(a' + h, b')."""
    return x[0] + y[0], x[0].composer.apply("max", x[1] + y[0], y[1])
