"""A level of the tree of spans with gates by channel between -> tile programs: vectors, the
products of the gates of a span, in place of matrices, and the gradient of that.

Of two spans side by side, of products A and then B, the later one's readers go on to the begin of
both, and the earlier one's tokens to the end:

    q' = A q      k' = B k

All is done in place, as with matrices (span_levels.py): a row of a later span is one of q, of an
earlier span one of k. The gradient of log A is the sum of dq' q' over the rows of the later span.
"""

from __future__ import annotations

import sympy

from archc.lowering.span_levels import Level
from archc.tile.compose import Composer, Tile, ceil_div
from archc.tile.language import Buffer, Program


class _Gates(Level):
    """A program under construction, of a block of rows, or of a span."""

    def __init__(self, name: str, doc: str):
        super().__init__(Composer(name, doc, 4, 2))

    def products(self, name: str, count: sympy.Expr) -> Buffer:
        """A vector of each span."""
        return self.of_spans(name, count, "f32")

    def beside(self, span: Tile) -> tuple[Tile, Tile, Tile]:
        """Whether the rows of a span are of q (0) or k (1), the other span of its pair, and whether
        there is one."""
        odd = span % 2
        other = (span + 1 - odd * 2).named("other")
        return 1 - odd, other, other < self.count

    def product(self, buffer: Buffer, place: Tile, *where: Tile) -> Tile:
        """The vector of a span."""
        return self.k.load(buffer, self.b, self.h, place, self.d, where=[self.in_d, *where])


def climb(name: str = "gates_climb", keeps: bool = False) -> Program:
    """q and k at the borders of spans of twice the length; it `keeps` the rows that it changes, as
    they were."""
    p = _Gates(name, "Rows of q and k brought to the borders of spans of twice the length.")
    k, products = p.k, p.products("matrices", p.count)
    both = p.both("both", "IO")
    kept = p.rows("kept") if keeps else None
    p.stand()
    first = k.program("block", ceil_div(p.T, p.BLOCK_T)) * p.BLOCK_T
    t = first + k.iota("t", p.BLOCK_T)
    side, other, there = p.beside((first // p.SIZE).named("span"))
    where = [t < p.T, p.in_d]
    x = k.load(both, side, p.b, p.h, t, p.d, where=where)
    if kept is not None:
        k.store(kept, p.b, p.h, t, p.d, value=x, where=where)
    made = x * p.product(products, other, there)
    k.store(both, side, p.b, p.h, t, p.d, value=made, where=[*where, there])
    return k.done()


def descend(name: str = "gates_descend") -> Program:
    """The gradients of q and k at the borders of the spans of a level, in place, and those of the
    logarithms of its products, from those of spans of twice the length. A program has the rows of
    one span, and makes what comes to the other one beside it."""
    p = _Gates(
        name, "Gradients of rows of q and k, and of log products, at the borders of a level."
    )
    k, products, kept = p.k, p.products("matrices", p.count), p.rows("kept")
    both = p.both("d_both", "f32")
    above = p.products("d_joined", ceil_div(p.count, 2))
    made = p.products("d_matrices", p.count)
    p.stand(True)
    span = k.program("span", p.count)
    side, other, there = p.beside(span)
    rows = k.apply("min", p.T - span * p.SIZE, p.SIZE)
    blocks = k.where(there, (rows + (p.BLOCK_T - 1)) // p.BLOCK_T, 0)
    own = p.product(products, other, there).named("own")
    total = p.product(above, span // 2).named("total")
    with k.loop(0, blocks, total, index="i") as turn:
        t = span * p.SIZE + turn.index * p.BLOCK_T + k.iota("t", p.BLOCK_T)
        where = [t < p.T, p.in_d]
        d = k.load(both, side, p.b, p.h, t, p.d, where=where) * own
        x = k.load(kept, p.b, p.h, t, p.d, where=where)
        k.store(both, side, p.b, p.h, t, p.d, value=d, where=where)
        turn.next(turn.carried[0] + (d * x).sum("t"))
    index = [p.b, p.h, k.where(there, other, span), p.d]
    k.store(made, *index, value=turn.results[0], where=[p.in_d])
    return k.done()
