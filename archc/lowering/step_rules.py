"""Lowering rules that only token-by-token programs have: among them, systems of equations."""

from __future__ import annotations

from collections.abc import Callable

from archc.ir import layer as ir
from archc.ir.graph import Node
from archc.ir.refusal import Refusal
from archc.lowering.elsewhere import gather, join, reshape, scatter
from archc.lowering.largest import top
from archc.lowering.rules import RULES
from archc.lowering.values import Made, Padded, Place, Rule, Values
from archc.tile.compose import Composer, Length, size
from archc.tile.handle import Tile

SOLVED = 1e-14
"""A system is solved where the square of what is left is this part of what there was."""


def solve(v: Values, node: Node, place: Place) -> Made:
    """z with A z = b for one symmetric positive definite system, by conjugate gradients."""
    op, (matrix, vector) = node.op, node.operands
    if not op.definite:
        return v.refused(node, "no matrix that is known to be symmetric and positive definite")
    (system,) = (axis for axis in node.type.axes if axis.name == op.row)
    inner = [name for name in node.type.names if place[name].label not in (None, op.row)]
    if inner or not place[op.row].whole:
        return v.refused(node, "several systems in one program")
    col = v.frame.graph[matrix].type.axis(op.col)
    matrix, diagonal = _without_diagonal(v, matrix, op)
    a = v.value(matrix, {**v.part(matrix, place), op.col: v.whole(col)})
    b = v.value(vector, v.part(vector, place))
    d = b if diagonal is None else v.value(diagonal, v.part(diagonal, place))
    if isinstance(a, Refusal) or isinstance(b, Refusal) or isinstance(d, Refusal):
        return next(made for made in (a, b, d) if isinstance(made, Refusal))
    a = v.masked(a.ordered(op.row, op.col), (op.row, op.col))
    b, d = v.masked(b, (op.row,)), v.masked(d, (op.row,))
    steps = op.iterations if op.iterations is not None else 2 * system.size
    names = [(symbol, size(str(symbol))) for symbol in v.size(steps).free_symbols]
    most = v.size(steps).subs(names)
    turns = v.k.lift(most, "i32")  # options may be declared as real ones
    product = by_rows(a.tile)
    if v.has_columns:
        product = by_columns(a.tile, None if diagonal is None else d.tile)
    return Padded(conjugate_gradients(v.k, product, b.tile, turns, most), b.zero)


def _without_diagonal(v: Values, matrix: int, op: ir.Solve) -> tuple[int, int | None]:
    """M and d of a matrix M + diag(d): where threads have columns, the product M p + d p needs no
    matrix beside M."""
    graph = v.frame.graph
    own, operands = graph[matrix].op, graph[matrix].operands
    apart = v.has_columns and own == ir.Elementwise("add")
    ones_of = ir.Delta(*(graph[matrix].type.axis(name) for name in (op.row, op.col)))
    for rest, added in (operands, operands[::-1]) if apart else ():
        parts = graph[added].operands if graph[added].op == ir.Elementwise("mul") else ()
        ones = [id for id in parts if graph[id].op == ones_of]
        vectors = [id for id in parts if {op.row, op.col} & {*graph[id].type.names} == {op.row}]
        if ones and vectors and {op.row, op.col} <= {*graph[rest].type.names}:
            return rest, vectors[0]
    return matrix, None


def by_rows(a: Tile) -> Callable[[Tile], Tile]:
    """Products with a matrix, of each row a sum."""
    row, col = a.value.type.names
    return lambda p: (a * p.along(**{row: col})).sum(col)


def by_columns(a: Tile, diagonal: Tile | None) -> Callable[[Tile], Tile]:
    """Products with a symmetric matrix and a diagonal one, of each column a sum."""
    row, col = a.value.type.names

    def product(p: Tile) -> Tile:
        y = (a * p).sum(row).along(**{col: row})
        return y if diagonal is None else y + diagonal * p

    return product


def conjugate_gradients(
    k: Composer, product: Callable[[Tile], Tile], b: Tile, turns: Tile, most: Length
) -> Tile:
    """z with A z = b after some steps at most, of products with A; they end where a system is
    solved."""
    (row,) = b.value.type.names
    z, rest = k.full(0.0, *b.dims), (b * b).sum(row)
    least, done = (rest * SOLVED).named("least"), k.full(0, dtype="i32")

    def going(rest: Tile, done: Tile) -> Tile:
        """Whether there is a next turn: also of inf and NaN, which z has to show."""
        return ~(rest - least <= 0.0) & (done < turns)

    carried = [z.named("z"), b, b, rest.named("rest"), done.named("turn")]
    with k.repeat(going(rest, done), *carried, most=most) as turn:
        z, r, p, rest, done = turn.carried
        y = product(p)
        scale = rest / (p * y).sum(row)
        r_next = r - scale * y
        after = (r_next * r_next).sum(row)
        p_next = r_next + after / rest * p
        turn.next(going(after, done + 1), z + scale * p, r_next, p_next, after, done + 1)
    return turn.results[0]


STEP_RULES: dict[type, Rule] = {
    **RULES, ir.Gather: gather, ir.Scatter: scatter, ir.Join: join, ir.Reshape: reshape,
    ir.Solve: solve, ir.Top: top,
}  # fmt: skip
