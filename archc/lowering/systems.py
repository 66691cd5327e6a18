"""Systems of equations as tiles: unit lower triangular ones of the rows of a chunk, and such as are
given by their products alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import sympy

from archc.ir import chunk as ck
from archc.ir import layer as ir
from archc.ir.builder import Builder
from archc.ir.graph import Graph, Node
from archc.ir.refusal import Refusal
from archc.ir.typing import layer_graph
from archc.lowering import scans, solve
from archc.lowering.values import Frame, Index, Made, Padded, Place, Values
from archc.tile.compose import size
from archc.tile.handle import Tile

QUERY = "p"
"""The name of the vector that a system's body multiplies by the matrix."""

TINY = 1.4e-14
"""The share of a squared length that float32 does not see: the square of its rounding."""


def inverse(v: Values, node: Node, place: Place) -> Made:
    """(I - A)^-1 of a matrix that is 0 on the diagonal and above."""
    op: ck.Inverse = node.op
    refused = v.not_whole(node, place, op.row, op.col)
    x = refused or v.value(node.operands[0], place)
    if isinstance(x, Refusal):
        return x
    x = v.masked(x.wide().ordered(op.row, op.col), (op.row, op.col))
    blocks = _own_blocks(v, node, place) if v.is_loaded(node.operands[0]) else None
    given = solve.Triangle(v.k, x.tile, op.row, op.col, blocks)
    made = solve.inverse(given, v.numbers.solve, v.numbers.precision, v.again)
    return Padded(made, product=True)


def _own_blocks(v: Values, node: Node, place: Place) -> Tile:
    """The blocks on the diagonal of a matrix in memory, which are read by themselves."""
    matrix, there = v.frame.graph[node.operands[0]], dict[str, Index]()
    for name in (node.op.row, node.op.col):
        axis, index = matrix.type.axis(name), place[name]
        block, inner = solve.blocks_of(name, index.at.dims[0].length)
        first = v.k.iota(solve.BLOCKS, block.length) * solve.BLOCK
        at = first + v.k.iota(inner.name, inner.length)
        inside = None if index.mask is None else at < v.k.lift(v.size(axis.size))
        there[name] = Index(at, False, inside)
    found = v.frame.given(matrix, {**v.part(matrix.id, place), **there})
    assert isinstance(found, Padded), "it was read whole before"
    return found.tile.to("f32")


def matrix_scan(v: Values, node: Node, place: Place) -> Made:
    """h[i] = A h[i - 1] + x[i] along the rows, for one matrix."""
    op: ck.Scan = node.op
    assert op.matrix is not None
    (row, col), (a, b, first) = op.matrix, node.operands
    graph, dims = v.frame.graph, [name for name in place if place[name].label]
    refused = v.not_whole(node, place, op.axis, col)
    if refused is not None:
        return refused
    if op.axis in graph[a].type.names:
        return v.refused(node, "a scan of another matrix at every row")
    if {*dims} != {op.axis, col}:
        return v.refused(node, "a scan of matrices with further dims")
    there = {**v.part(a, place), col: place[col], row: v.whole(graph[a].type.axis(row))}
    found = []
    for operand, own in ((a, there), (b, v.part(b, place)), (first, v.part(first, place))):
        x = v.value(operand, own)
        if isinstance(x, Refusal):
            return x
        found.append(x.wide())
    matrix = v.masked(found[0], (col, row))
    rows = v.over(found[1], (*place[op.axis].at.dims, *place[col].at.dims))
    rows, start = v.masked(rows, (op.axis, col)), v.masked(found[2], (col,))
    tile = scans.matrix_scan(
        v.k, matrix.tile, rows.tile, None if start.number == 0 else start.tile, op.axis,
        (row, col), reverse=op.reverse, precision=v.numbers.precision,
    )  # fmt: skip
    return Padded(tile, frozenset({col}))


# --- given by products --------------------------------------------------------------------------


def conjugate(v: Values, node: Node, place: Place) -> Made:
    """Conjugate gradients: a loop of products with the matrix. A system that is solved stays as it
    is, as one whose right side is 0 does."""
    op: Any = node.op
    dims = [name for name in place if place[name].label]
    if len(op.over) > 1 or op.over[0] not in dims or len(dims) != 2:
        return v.refused(node, f"systems over several dims, or of {len(dims)} dims in a program")
    refused = v.not_whole(node, place, *dims)
    right = refused or v.value(node.operands[0], v.part(node.operands[0], place))
    if isinstance(right, Refusal):
        return right
    labels = v.sorted(dims)
    if {*right.labels} != {*labels}:
        return v.refused(node, "a right side that is the same for several systems")
    right, body = v.masked(right.wide().ordered(*labels), op.over), scaled_last(op.body)

    def product(p: Tile) -> Made:
        with v.within(_matrix(v, node, body, Padded(p, right.zero, product=True, stored=True))):
            made = v.value(body.outputs["product"], place)
        if isinstance(made, Refusal):
            return made
        return v.masked(made.wide().ordered(*labels), op.over)

    # what products need and what does not change is read here
    tried = product(right.tile.to(v.numbers.operand))
    if isinstance(tried, Refusal):
        return tried
    tile = _conjugate_gradients(v, node, right.tile, product)
    return Padded(tile, right.zero, product=True) if isinstance(tile, Tile) else tile


def _matrix(v: Values, node: Node, body: Graph, p: Padded) -> Frame:
    """The graph of a product with the matrix."""
    outer, captured = v.frame, dict(zip(node.op.captures, node.operands[1:], strict=True))

    def given(inner: Node, place: Place) -> Made | None:
        if not isinstance(inner.op, ir.Input):
            return None
        if inner.op.name == QUERY:
            labelled = [name for name, index in place.items() if index.label]
            return v.not_whole(inner, place, *labelled) or p
        with v.within(outer):
            return v.stored(captured[inner.op.name], place)

    owner = node.id if outer.owner is None else outer.owner
    return Frame(body, given, owner, outer.exact, frozenset({QUERY}))


def scaled_last(body: Graph) -> Graph:
    """The same product, in which p enters products of matrices as it is, and what comes out is
    scaled: all of them then have one operand in common."""
    made, copies = layer_graph(), dict[int, int]()
    query = next(n.id for n in body if isinstance(n.op, ir.Input) and n.op.name == QUERY)
    for node in body:
        place, factor = _scale_of(body, node, query)
        operands = [copies[operand] for operand in node.operands]
        if place is None:
            copies[node.id] = made.add(node.op, *operands, name=node.name, span=node.span)
            continue
        operands[place] = copies[query]
        product = made.add(node.op, *operands, span=node.span)
        copies[node.id] = Builder(made, node.span).fn("mul", product, copies[factor])
    made.outputs = {name: copies[id] for name, id in body.outputs.items()}
    made.prune()
    return made


def _scale_of(body: Graph, node: Node, query: int) -> tuple[int | None, int]:
    """The operand of a product that is p times a factor of what is not summed, and that factor."""
    if not isinstance(node.op, ir.Contract) or len(node.operands) != 2:
        return None, 0
    kept = {axis.name for label, axis in node.op.out if label == axis.name}
    for place, (operand, labels) in enumerate(zip(node.operands, node.op.ins, strict=True)):
        scaled = body[operand]
        if scaled.op != ir.Elementwise("mul") or scaled.type.names != body[query].type.names:
            continue
        for p, factor in (scaled.operands, scaled.operands[::-1]):
            same = all(
                label == name
                for label, name in zip(labels, scaled.type.names, strict=True)
                if name in body[factor].type.names
            )
            if p == query and same and {*body[factor].type.names} <= kept:
                return place, factor
    return None, 0


def _conjugate_gradients(
    v: Values, node: Node, right: Tile, product: Callable[[Tile], Made]
) -> Tile | Refusal:
    """z with M z = right, from 0 on. Directions are as exact as operands of products are: the
    residual then is that of the solution, whatever was rounded. They are of length 1, or nearly: as
    short as the residual becomes, they would be nothing in float16."""
    k, (over,), operand = v.k, node.op.over, v.numbers.operand
    rest = (right * right).sum(over).named("rest")
    done = (rest * TINY).named("done")
    first = right * inverse_root(v, rest)
    start = k.full(0.0, *right.dims).named("solved"), right, first.to(operand), rest
    with k.loop(0, _turns(v, node), *start) as turn, v.inner():
        z, r, direction, rest = turn.carried
        y, p = product(direction), direction.to("f32")
        if isinstance(y, Refusal):
            turn.next(*turn.carried)
            return y
        going = (rest > done).named("going")
        curved = k.where(going, (p * y.tile).sum(over), 1.0).named("curved")
        scale = k.where(going, k.apply("sqrt", rest) / curved, 0.0).named("scale")
        r = r - scale * y.tile
        left = (r * r).sum(over).named("left")
        ratio = k.where(going, left / k.where(going, rest, 1.0), 0.0)
        onward = k.apply("sqrt", ratio).named("onward")
        turned = r * inverse_root(v, left) + onward * p
        turn.next(z + scale * p, r, turned.to(operand), left)
    return turn.results[0]


def inverse_root(v: Values, square: Tile) -> Tile:
    """1 / sqrt(square), 0 where that is 0."""
    there = square > 0
    return v.k.where(there, 1.0 / v.k.apply("sqrt", v.k.where(there, square, 1.0)), 0.0)


def _turns(v: Values, node: Node) -> sympy.Expr:
    """How many turns: as many as are asked for, or enough for rounding."""
    op: Any = node.op
    if op.iterations is not None:
        names = {s: size(str(v.size(s))) for s in op.iterations.free_symbols}
        return op.iterations.xreplace(names)
    return 2 * v.size(node.type.axis(op.over[0]).size)
