"""A level of the tree of spans -> tile programs: from the borders of its spans to those of spans of
twice the length, and the gradient of that.

Of two spans side by side, of matrices A and then B, the later one's readers go on to the begin of
both, and the earlier one's tokens to the end:

    q' = q A'      k' = k B      M = A B

All is done in place: a row of a later span is one of q, of an earlier span one of k, and others
stay as they are. A last span without another beside it stays so, too.
"""

from __future__ import annotations

import sympy

from archc.tile.compose import Composer, Tile, ceil_div
from archc.tile.language import Buffer, Program

READERS, READ = 0, 1
"""The two kinds of rows."""


class Level:
    """A program under construction, of a block of rows, or of a span: what those of matrices and of
    gates by channel (gate_levels.py) have in common."""

    def __init__(self, k: Composer, precise: bool = False):
        self.k, (self.IO,) = k, k.dtypes("IO")
        self.PRECISION = k.precisions("PRECISION")[0] if precise else ""
        self.B, self.N_H, self.N_K = k.sizes("B", "N_H", "N_K")
        self.T, self.SIZE = k.sizes("T", "SIZE", varying=True)
        self.BLOCK_T, self.BLOCK_K = k.lengths("BLOCK_T", "BLOCK_K")
        self.count = ceil_div(self.T, self.SIZE)

    def both(self, name: str, dtype: str) -> Buffer:
        """Rows of q and of k, [side, b, h, token, K]."""
        axes = {"side": 2, "b": self.B, "h": self.N_H, "t": self.T, "d_K": self.N_K}
        return self.k.memory(name, axes, dtype)

    def rows(self, name: str) -> Buffer:
        """The rows that a level changes: of q in later spans, of k in earlier ones."""
        axes = {"b": self.B, "h": self.N_H, "t": self.T, "d_K": self.N_K}
        return self.k.memory(name, axes, "IO")

    def of_spans(self, name: str, count: sympy.Expr, dtype: str, *more: str) -> Buffer:
        """A vector of each span, [b, h, span, K]; with an axis `more`, a matrix."""
        axes = {"b": self.B, "h": self.N_H, "n": count, "d_K": self.N_K}
        return self.k.memory(name, axes | dict.fromkeys(more, self.N_K), dtype)

    def stand(self, channels: bool = False) -> None:
        """The grid, but for places along the tokens; with some of the channels each, or all."""
        k = self.k
        self.b, self.h = k.program("b", self.B), k.program("h", self.N_H)
        self.d = k.iota("d", self.BLOCK_K)
        if channels:
            self.d = k.program("channels", ceil_div(self.N_K, self.BLOCK_K)) * self.BLOCK_K + self.d
        self.in_d = self.d < self.N_K


class _Matrices(Level):
    """Such a program of matrices."""

    def __init__(self, name: str, doc: str, ahead: int = 2):
        super().__init__(Composer(name, doc, 8, ahead), True)

    def matrices(self, name: str, count: sympy.Expr) -> Buffer:
        """A matrix of each span."""
        return self.of_spans(name, count, "IO", "e_K")

    def stand(self, channels: bool = False) -> None:
        """The grid, and columns beside rows."""
        super().stand(channels)
        self.e = self.k.iota("e", self.BLOCK_K)
        self.in_e = self.e < self.N_K

    def matrix(self, buffer: Buffer, place: Tile, *where: Tile) -> Tile:
        """The matrix of a span, [d, e]."""
        index = [self.b, self.h, place, self.d, self.e]
        return self.k.load(buffer, *index, where=[self.in_d, self.in_e, *where], wide=False)

    def dot(self, a: Tile, b: Tile, add: Tile | None = None) -> Tile:
        """A product of matrices."""
        return self.k.dot(a.to(self.IO), b.to(self.IO), add, precision=self.PRECISION)

    def beside(self, span: Tile, side: int) -> tuple[Tile, Tile]:
        """The other span of a pair, and whether there is one."""
        other = (span - 1 if side == READERS else span + 1).named("other")
        return other, other < self.count


def climb(name: str = "span_climb", keeps: bool = False) -> Program:
    """q and k at the borders of spans of twice the length; it `keeps` the rows that it changes, as
    they were."""
    p = _Matrices(name, "Rows of q and k brought to the borders of spans of twice the length.")
    k, matrices = p.k, p.matrices("matrices", p.count)
    both = p.both("both", "IO")
    kept = p.rows("kept") if keeps else None
    p.stand()
    first = k.program("block", ceil_div(p.T, p.BLOCK_T)) * p.BLOCK_T
    t = first + k.iota("t", p.BLOCK_T)
    span = (first // p.SIZE).named("span")

    def move(side: int) -> None:
        other, there = p.beside(span, side)
        x = k.load(both, side, p.b, p.h, t, p.d, where=[t < p.T, p.in_d], wide=False)
        if kept is not None:
            k.store(kept, p.b, p.h, t, p.d, value=x, where=[t < p.T, p.in_d])
        m = p.matrix(matrices, other, there).named("m")
        y = p.dot(x, m.along(d="e", e="d") if side == READERS else m)
        out = y.along(d="e") if "d" in y.value.type.names else y
        k.store(both, side, p.b, p.h, t, p.e, value=out, where=[t < p.T, p.in_e, there])

    with k.branch((span % 2).equals(1)) as later:
        move(READERS)
    with k.otherwise(later):
        move(READ)
    return k.done()


def join(name: str = "span_join") -> Program:
    """The matrices of spans of twice the length."""
    p = _Matrices(name, "Matrices of two spans multiplied.")
    k, twice = p.k, ceil_div(p.count, 2)
    matrices, joined = p.matrices("matrices", p.count), p.matrices("joined", twice)
    p.stand()
    n = k.program("span", twice)
    f = k.iota("f", p.BLOCK_K)
    in_f, there = f < p.N_K, n * 2 + 1 < p.count
    early = p.matrix(matrices, n * 2)
    index = [p.b, p.h, n * 2 + 1, p.e, f]
    late = k.load(matrices, *index, where=[p.in_e, in_f, there], wide=False)
    made = k.where(there, p.dot(early, late), early.to("f32").along(e="f"))
    k.store(joined, p.b, p.h, n, p.d, f, value=made, where=[p.in_d, in_f])
    return k.done()


def _of_joined(
    p: _Matrices, matrices: Buffer, above: Buffer, span: Tile, there: Tile, side: int
) -> Tile:  # fmt: skip
    """The gradient of a matrix from that of the product M = A B with the one of a span: dM B' of A,
    A' dM of B, some columns or rows at a time; of a matrix by itself that of M."""
    k, first = p.k, side == READERS
    with k.loop(0, ceil_div(p.N_K, p.BLOCK_T), k.full(0.0, p.d.dims[0], p.e.dims[0])) as turn:
        f = turn.index * p.BLOCK_T + k.iota("f", p.BLOCK_T)
        index, where = [p.b, p.h, span // 2], [f < p.N_K, p.in_d if first else p.in_e]
        index += [p.d, f] if first else [f, p.e]
        arriving = k.load(above, *index, where=where, wide=False)
        place = [p.e, f] if first else [f, p.d]
        where = [f < p.N_K, p.in_e if first else p.in_d]
        own = k.load(matrices, p.b, p.h, span, *place, where=where, wide=False)
        one = k.where(place[0].over(*own.dims).equals(place[1]), 1.0, 0.0).to(p.IO)
        own = k.where(there, own, one).named("own")
        both = (arriving, own) if first else (own, arriving)
        turn.next(p.dot(*both, turn.carried[0]))
    return turn.results[0].named("total")


def descend(name: str = "span_descend") -> Program:
    """The gradients of q and k at the borders of the spans of a level, in place, and those of its
    matrices, from those of spans of twice the length. A program has the rows of one span, and makes
    what comes to the matrix of the other one beside it."""
    doc = "Gradients of rows of q and k, and of matrices, at the borders of a level."
    p = _Matrices(name, doc, 1)
    k, twice = p.k, ceil_div(p.count, 2)
    matrices, kept, both = p.matrices("matrices", p.count), p.rows("kept"), p.both("d_both", "f32")
    above, made = p.matrices("d_joined", twice), p.matrices("d_matrices", p.count)
    p.stand()
    span = k.program("span", p.count)
    rows = k.apply("min", p.T - span * p.SIZE, p.SIZE)
    blocks = (rows + (p.BLOCK_T - 1)) // p.BLOCK_T

    def move(side: int) -> None:
        other, there = p.beside(span, side)
        total = _of_joined(p, matrices, above, span, there, side)
        m = p.matrix(matrices, other, there).named("m")
        with k.loop(0, k.where(there, blocks, 0), total, index="i") as turn:
            t = span * p.SIZE + turn.index * p.BLOCK_T + k.iota("t", p.BLOCK_T)
            d = k.load(both, side, p.b, p.h, t, p.d, where=[t < p.T, p.in_d]).to(p.IO)
            x = k.load(kept, p.b, p.h, t, p.e, where=[t < p.T, p.in_e], wide=False)
            turned = m if side == READERS else m.along(d="e", e="d")
            k.store(both, side, p.b, p.h, t, p.e, value=p.dot(d, turned),
                    where=[t < p.T, p.in_e])  # fmt: skip
            if side == READ:
                d, x = x.along(e="d"), d.along(d="e")
            turn.next(p.dot(d, x, turn.carried[0]))
        index = [p.b, p.h, k.where(there, other, span), p.d, p.e]
        k.store(made, *index, value=turn.results[0], where=[p.in_d, p.in_e])

    with k.branch((span % 2).equals(1)) as later:
        move(READERS)
    with k.otherwise(later):
        move(READ)
    return k.done()
