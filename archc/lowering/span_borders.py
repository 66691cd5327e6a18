"""Spans of tokens between which matrices stand -> tile programs: what is at the borders of each
span, and its gradient. A program has one span of one head.

A span has `SPAN` rows of U and of W, of which a token has so many `ranks`, one for each outer
product; M = I - U' W of one token, and masks by tokens:

    A     = (I + L)^-1,  L = stril(U W')         G = tril(Q W'),  H = stril(U K')
    left  = G A          q' = Q - left U         right = H'
    mid   = H' A'        k' = K - mid W          M of the span = I - X W,  X = U' A'

Where U is W times a rate of each of its rows, it is made of these, and is in no memory. The
gradient goes back through the same products; that of A is kept turned around, N = dA', so that no
product of another is turned to be the left factor of one: dL' = -A N A.

source: the WY form, Bischof and Van Loan 1987.
"""

from __future__ import annotations

from dataclasses import dataclass

import sympy

from archc.attention.between import SPAN
from archc.lowering.solve import Triangle, inverse
from archc.tile.compose import Composer, Length, Tile
from archc.tile.language import Buffer, Dim, Program


@dataclass(frozen=True)
class Vectors:
    """The vectors that a program has loaded, in the dtype of the data: tokens as readers `t` and as
    read `s`, rows of U and W as those of the later token `i` and of the earlier `j`."""

    q: Tile
    k: Tile
    u: Tile
    w: Tile


class Borders:
    """A program under construction: its buffers, where it stands, and the small matrices."""

    def __init__(self, ranks: int, rated: bool, name: str, doc: str):
        self.ranks, self.span, self.k = ranks, SPAN // ranks, Composer(name, doc, 8, 1)
        self.rated = rated
        k = self.k
        (self.IO,), (self.PRECISION,), (self.SOLVE,) = (
            k.dtypes("IO"), k.precisions("PRECISION"), k.dtypes("SOLVE"),
        )  # fmt: skip
        self.B, self.N_H, self.N_K = k.sizes("B", "N_H", "N_K")
        (self.T,) = k.sizes("T", varying=True)
        (self.BLOCK_K,) = k.lengths("BLOCK_K")
        self.spans = sympy.ceiling(self.T / sympy.Integer(self.span))
        counts = (("q", 1), ("k", 1), ("rate" if rated else "u", ranks), ("w", ranks))
        self.inputs = {
            name: k.memory(name, self.given(count, name == "rate"),
                           "f32" if name == "rate" else "IO", strided=True)
            for name, count in counts
        }  # fmt: skip

    def given(self, ranks: int, rate: bool = False) -> dict[str, Length]:
        """The axes of vectors, so many a token, as they are given; of rates, a number each."""
        last: dict[str, Length] = {"one": 1} if rate else {"d_K": self.N_K}
        return {"b": self.B, "t": self.T * ranks, "h": self.N_H, **last}

    def rows(self, name: str, dtype: str = "IO") -> Buffer:
        """Vectors of all tokens of whole spans, [b, h, token, K]."""
        axes = {"b": self.B, "h": self.N_H, "t": self.spans * self.span, "d_K": self.N_K}
        return self.k.memory(name, axes, dtype)

    def beside(self, name: str, dtype: str = "IO") -> Buffer:
        """A number of each token for each row of U."""
        axes = {"b": self.B, "h": self.N_H, "t": self.spans * self.span, "d_inner": SPAN}
        return self.k.memory(name, axes, dtype)

    def matrices(self, name: str) -> Buffer:
        """A matrix of each span."""
        axes = {"b": self.B, "h": self.N_H, "n": self.spans, "d_K": self.N_K, "e_K": self.N_K}
        return self.k.memory(name, axes, "IO")

    def stand(self) -> None:
        """The grid, places, and what is loaded of the span."""
        k, steps = self.k, self.span * self.ranks
        self.b, self.h = k.program("b", self.B), k.program("h", self.N_H)
        self.n = k.program("span", self.spans)
        self.t, self.s = (k.iota(name, self.span) for name in "ts")
        self.i, self.j = (k.iota(name, steps) for name in "ij")
        self.d, self.e = (k.iota(name, self.BLOCK_K) for name in "de")
        self.in_d, self.in_e = self.d < self.N_K, self.e < self.N_K
        self.own = {"i": self.i // self.ranks, "j": self.j // self.ranks}
        q = self.vectors("q", self.t, 1)
        k_ = self.vectors("k", self.s, 1)
        u = None if self.rated else self.vectors("u", self.j, self.ranks)
        w = self.vectors("w", self.i, self.ranks)
        self.x = Vectors(q, k_, self.made_of(w) if u is None else u, w)

    def made_of(self, w: Tile) -> Tile:
        """Rows of U, which are those of W at their rates."""
        rows = w.along(i="j").to("f32")
        return self.io(rows * self.rates().over(*rows.dims)).named("b_u")

    def vectors(self, name: str, row: Tile, count: int, again: bool = False) -> Tile:
        """Rows of the span, 0 behind the last token; read `again`, not kept."""
        at = self.n * (self.span * count) + row
        where = [at < self.T * count, self.in_d]
        return self.k.load(
            self.inputs[name], self.b, at, self.h, self.d, where=where, wide=False, apart=again
        ).named(f"b_{name}")

    def rates(self, again: bool = False) -> Tile:
        """The rates of rows of U."""
        at = self.n * (self.span * self.ranks) + self.j
        where = [at < self.T * self.ranks]
        return self.k.load(self.inputs["rate"], self.b, at, self.h, 0, where=where, apart=again)

    def row_index(self, row: Tile) -> list[Tile]:
        """The index of rows of results."""
        return [self.b, self.h, self.n * self.span + row]

    def io(self, x: Tile) -> Tile:
        """A factor of a product."""
        return x.to(self.IO)

    def dot(self, a: Tile, b: Tile, add: Tile | None = None) -> Tile:
        """A product of matrices; the left factor is none that a product gave turned around."""
        return self.io(a).dot(self.io(b), add, precision=self.PRECISION)

    def small(self) -> None:
        """A [i, j], G [t, i] and H' [s, j], with zeros where the masks have them."""
        k, x = self.k, self.x
        u, w = x.u.along(j="i"), x.w.along(i="j")
        later = self.own["i"].over(Dim("i", self.i.dims[0].length), self.j.dims[0])
        L = k.where(later > self.own["j"], self.dot(u, w), 0.0)
        self.A = self.io(inverse(Triangle(k, -L, "i", "j"), self.SOLVE, self.PRECISION)).named("A")
        self.G = self.io(self.reached(self.dot(x.q, x.w), self.t, self.own["i"])).named("G")
        self.H = self.io(self.after(self.dot(x.k, x.u), self.s, self.own["j"])).named("H")

    def result(self, name: str, ranks: int = 1) -> Buffer:
        """Vectors of all tokens, as they are given, of some of the heads."""
        return self.k.memory(name, self.given(ranks), "IO", rows="t")

    def leave(self, buffer: Buffer, row: Tile, made: Tile, ranks: int = 1) -> None:
        """Store the rows of a result, up to the last token."""
        at = self.n * (self.span * ranks) + row
        where = [at < self.T * ranks, self.in_d]
        self.k.store(buffer, self.b, at, self.h, self.d, value=made, where=where)

    def reached(self, made: Tile, token: Tile, own: Tile) -> Tile:
        """A tile with 0 in rows after its reader."""
        return self.k.where(token.over(*made.dims) >= own.over(*made.dims), made, 0.0)

    def after(self, made: Tile, token: Tile, own: Tile) -> Tile:
        """A tile with 0 in rows up to its token."""
        return self.k.where(own.over(*made.dims) > token.over(*made.dims), made, 0.0)


def borders(ranks: int, rated: bool = False, name: str = "span_borders") -> Program:
    """q at the begin of each span, k at its end, its matrix, and the vectors beside q and k within
    the span."""
    p = Borders(ranks, rated, name, "q and k of a span brought to its borders, and its matrix.")
    k = p.k
    moved, ends = p.rows("q_moved"), p.rows("k_moved")
    matrix, left, right = p.matrices("matrix"), p.beside("left"), p.beside("right")
    p.stand()
    x = p.x
    p.small()
    made = p.io(p.dot(p.G, p.A)).named("made_left")
    k.store(left, *p.row_index(p.t), p.j, value=made)
    k.store(right, *p.row_index(p.s), p.j, value=p.H)
    k.store(moved, *p.row_index(p.t), p.d, value=x.q - p.dot(made, x.u), where=[p.in_d])
    mid = p.dot(p.H, p.A).named("mid")
    k.store(ends, *p.row_index(p.s), p.d, value=x.k - p.dot(mid, x.w), where=[p.in_d])
    X = p.dot(x.u, p.A).named("X")
    one = k.where(p.d.over(p.d.dims[0], p.e.dims[0]).equals(p.e), 1.0, 0.0)
    whole = one - p.dot(X, x.w.along(d="e"))
    index = [p.b, p.h, p.n, p.d, p.e]
    k.store(matrix, *index, value=whole, where=[p.in_d, p.in_e])
    return k.done()


def of_borders(ranks: int, rated: bool = False, name: str = "span_borders_gradient") -> Program:
    """The gradients of q, k, U or its rates, and W, where they belong, from those of what `borders`
    makes, and those of q and k within spans."""
    p = Borders(ranks, rated, name, "The gradient of what is at the borders of a span.")
    k = p.k
    given = {n: p.rows(n, "f32") for n in ("d_q_moved", "d_k_moved")}
    d_matrix = p.matrices("d_matrix")
    d_left, d_right = p.beside("d_left", "f32"), p.beside("d_right", "f32")
    within = {n: p.rows(n, "f32") for n in ("d_q_within", "d_k_within")}
    d_q, d_k = p.result("d_q"), p.result("d_k")
    d_rate = k.memory("d_rate", p.given(ranks, True), rows="t") if rated else None
    d_u, d_w = None if rated else p.result("d_u", ranks), p.result("d_w", ranks)
    p.stand()
    p.small()
    D = k.load(d_matrix, p.b, p.h, p.n, p.d, p.e, where=[p.in_d, p.in_e], wide=False)
    back = _Back(p)
    back.of_matrix(D)

    def arriving(buffer: Buffer, row: Tile) -> Tile:
        return k.load(buffer, *p.row_index(row), p.d, where=[p.in_d])

    made = back.of_end(arriving(given["d_k_moved"], p.s), k.load(d_right, *p.row_index(p.s), p.j))
    p.leave(d_k, p.s, arriving(within["d_k_within"], p.s).over(*made.dims) + made)
    made = back.of_begin(arriving(given["d_q_moved"], p.t), k.load(d_left, *p.row_index(p.t), p.j))
    p.leave(d_q, p.t, arriving(within["d_q_within"], p.t).over(*made.dims) + made)
    u, w = back.of_system()
    if d_rate is not None:
        own = u * p.vectors("w", p.j, ranks, True).to("f32").over(*u.dims)
        at = p.n * (p.span * ranks) + p.j
        k.store(d_rate, p.b, at, p.h, 0, value=own.sum("d"), where=[at < p.T * ranks])
        w = w + (u * p.rates(True).over(*u.dims)).along(j="i").over(*w.dims)
    if d_u is not None:
        p.leave(d_u, p.j, u, ranks)
    p.leave(d_w, p.i, w, ranks)
    return k.done()


class _Back:
    """The gradients of U [d, j], of W [d, i] and of A, turned around, [j, i], with one result of
    the span after the other."""

    def __init__(self, p: Borders):
        self.p = p
        self.u: Tile | None = None
        self.w: Tile | None = None
        self.N: Tile | None = None

    def of_matrix(self, D: Tile) -> None:
        """From that of the matrix."""
        p, x = self.p, self.p.x
        X = p.dot(x.u, p.A).named("X")
        self.w = -p.dot(D, X).along(e="d")
        d_X = (-p.dot(D, x.w.along(d="e"))).named("d_X")
        self.u = p.dot(d_X, p.A)
        self.N = p.dot(x.u, d_X)

    def of_end(self, d_k: Tile, d_right: Tile) -> Tile:
        """From those of k at the end and of the vectors beside; that of k, [s, d]."""
        p, x = self.p, self.p.x
        mid = p.dot(p.H, p.A).named("mid")
        self.w = p.dot(d_k, -mid, self.w)
        d_mid = (-p.dot(d_k, x.w)).named("d_mid")
        H = p.after(p.dot(x.u, x.k), p.s, p.own["j"])
        self.N = p.dot(H, d_mid, self.N)
        d_H = p.after(p.dot(d_mid, p.A, d_right), p.s, p.own["j"]).named("d_H")
        self.u = p.dot(x.k, d_H, self.u)
        return p.dot(d_H, x.u, d_k)

    def of_begin(self, d_q: Tile, d_left: Tile) -> Tile:
        """From those of q at the begin and of the vectors beside; that of q, [d, t]."""
        p, x = self.p, self.p.x
        left = p.dot(p.G, p.A).named("made_left")
        self.u = p.dot(d_q, -left, self.u)
        turned = (d_left.ordered("j", "t") - p.dot(x.u, d_q)).named("turned")
        self.N = p.dot(turned, p.G, self.N)
        d_G = p.reached(p.dot(p.A, turned), p.t, p.own["i"]).named("d_G")
        self.w = p.dot(x.q, d_G, self.w)
        return p.dot(x.w, d_G, d_q.ordered("d", "t"))

    def of_system(self) -> tuple[Tile, Tile]:
        """Those of U and W, with that of A: through L, whose own is turned around too, [r, c] of
        earlier rows r and later rows c."""
        p, x = self.p, self.p.x
        assert self.N is not None and self.u is not None and self.w is not None
        first, last = p.A.along(i="r"), p.A.along(j="c")
        L = -p.dot(p.dot(first, self.N), last)
        r, c = (p.own["i"].along(i=name) for name in "rc")
        L = p.k.where(c.over(*L.dims) > r.over(*L.dims), L, 0.0)
        u = p.dot(x.w.along(i="r"), L, self.u.along(j="c")).along(c="j")
        return u, p.dot(x.u.along(j="c"), L, self.w.along(i="r")).along(r="i")
