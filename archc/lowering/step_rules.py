"""Lowering rules that only token-by-token programs have: among them, systems of equations."""

from __future__ import annotations

from archc.ir import layer as ir
from archc.ir.graph import Node
from archc.lowering.elsewhere import gather, join, reshape, scatter
from archc.lowering.largest import top
from archc.lowering.rules import RULES
from archc.lowering.values import Made, Padded, Place, Refusal, Rule, Values
from archc.tile.compose import Composer, size
from archc.tile.handle import Tile

SOLVED = 1e-14
"""A system is solved where the square of what is left is this part of what there was."""


def solve(v: Values, node: Node, place: Place) -> Made:
    """z with A z = b for one symmetric positive definite system, by conjugate gradients."""
    op, (matrix, vector) = node.op, node.operands
    (system,) = (axis for axis in node.type.axes if axis.name == op.row)
    inner = [name for name in node.type.names if place[name].label not in (None, op.row)]
    if inner or not place[op.row].whole:
        return v.refused(node, "several systems in one program")
    col = v.frame.graph[matrix].type.axis(op.col)
    a = v.value(matrix, {**v.part(matrix, place), op.col: v.whole(col)})
    b = v.value(vector, v.part(vector, place))
    if isinstance(a, Refusal) or isinstance(b, Refusal):
        return a if isinstance(a, Refusal) else b
    a = v.masked(a.ordered(op.row, op.col), (op.row, op.col))
    b = v.masked(b, (op.row,))
    steps = op.iterations if op.iterations is not None else 2 * system.size
    names = [(symbol, size(str(symbol))) for symbol in v.size(steps).free_symbols]
    turns = v.k.lift(v.size(steps).subs(names), "i32")  # options may be declared as real ones
    return Padded(conjugate_gradients(v.k, a.tile, b.tile, turns), b.zero)


def conjugate_gradients(k: Composer, a: Tile, b: Tile, turns: Tile) -> Tile:
    """z with A z = b after some steps at most; a system that is solved stays as it is."""
    row, col = a.value.type.names
    z, rest = k.full(0.0, *b.dims), (b * b).sum(row)
    least = (rest * SOLVED).named("least")
    carried = [z.named("z"), b, b, rest]
    with k.loop(0, turns, *carried, index="turn") as turn:
        z, r, p, rest = turn.carried
        y = (a * p.along(**{row: col})).sum(col)
        slope, going = (p * y).sum(row), rest > least
        scale = k.where(going, rest / k.where(going, slope, 1.0), 0.0)
        z, r = z + scale * p, r - scale * y
        after = (r * r).sum(row)
        factor = k.where(going, after / k.where(going, rest, 1.0), 0.0)
        turn.next(z, r, r + factor * p, after)
    return turn.results[0]


STEP_RULES: dict[type, Rule] = {
    **RULES, ir.Gather: gather, ir.Scatter: scatter, ir.Join: join, ir.Reshape: reshape,
    ir.Solve: solve, ir.Top: top,
}  # fmt: skip
