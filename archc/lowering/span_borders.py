"""Spans of tokens between which matrices stand -> tile programs: what is at the borders of each
span, and its gradient. A program has one span of one head.

A span has `SPAN` rows of U and of W, of which a token has so many `ranks`, one for each outer
product; M = I - U' W of one token, and masks by tokens:

    A     = (I + L)^-1,  L = stril(U W')         G = tril(Q W'),  H = stril(U K')
    left  = G A          q' = Q - left U         right = H'
    mid   = H' A'        k' = K - mid W          M of the span = I - X W,  X = U' A'

Where U is W times a rate of each of its rows, it is made nowhere: W stands for it, and what small
matrices have for each of its rows is multiplied by the rate. The gradient goes through the same
products; that of A is kept turned around, N = dA', so that no product of another is turned to be
the left factor of one: dL' = -A N A.

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
    read `s`, rows of U and W as those of the later token `i` and of the earlier `j`; of U those of
    W, where these have rates."""

    q: Tile
    k: Tile
    u: Tile
    w: Tile


class Spans:
    """A program of a span of so many tokens, under construction, with data of a dtype."""

    d: Tile
    in_d: Tile

    def __init__(self, k: Composer, span: int, dtype: str):
        self.k, self.span, self.IO = k, span, dtype
        self.B, self.N_H, self.N_K = k.sizes("B", "N_H", "N_K")
        (self.T,) = k.sizes("T", varying=True)
        (self.BLOCK_K,) = k.lengths("BLOCK_K")
        self.spans = sympy.ceiling(self.T / sympy.Integer(span))

    def given(self, ranks: int) -> dict[str, Length]:
        """The axes of vectors, so many a token, as they are given."""
        return {"b": self.B, "t": self.T * ranks, "h": self.N_H, "d_K": self.N_K}

    def rows(self, name: str, dtype: str = "IO") -> Buffer:
        """Vectors of all tokens of whole spans, [b, h, token, K]."""
        axes = {"b": self.B, "h": self.N_H, "t": self.spans * self.span, "d_K": self.N_K}
        return self.k.memory(name, axes, dtype)

    def beside(self, name: str, dtype: str = "IO") -> Buffer:
        """A number of each token for each row of U, or for each token of the span."""
        axes = {"b": self.B, "h": self.N_H, "t": self.spans * self.span, "d_inner": SPAN}
        return self.k.memory(name, axes, dtype)

    def stand_in_grid(self) -> None:
        """The grid."""
        k = self.k
        self.b, self.h = k.program("b", self.B), k.program("h", self.N_H)
        self.n = k.program("span", self.spans)

    def row_index(self, row: Tile) -> list[Tile]:
        """The index of rows of results."""
        return [self.b, self.h, self.n * self.span + row]

    def result(self, name: str, ranks: int = 1) -> Buffer:
        """Vectors of all tokens, as they are given, of some of the heads."""
        return self.k.memory(name, self.given(ranks), "IO", rows="t")

    def leave(self, buffer: Buffer, row: Tile, made: Tile, ranks: int = 1) -> None:
        """Store the rows of a result, up to the last token."""
        at = self.n * (self.span * ranks) + row
        where = [at < self.T * ranks, self.in_d]
        self.k.store(buffer, self.b, at, self.h, self.d, value=made, where=where)


class Borders(Spans):
    """A program under construction: its buffers, where it stands, and the small matrices."""

    def __init__(self, ranks: int, rated: bool, name: str, doc: str):
        self.ranks, self.rated, k = ranks, rated, Composer(name, doc, 8, 1)
        (dtype,), (self.PRECISION,), (self.SOLVE,) = (
            k.dtypes("IO"), k.precisions("PRECISION"), k.dtypes("SOLVE"),
        )  # fmt: skip
        super().__init__(k, SPAN // ranks, dtype)
        counts = (("q", 1), ("k", 1), ("rate" if rated else "u", ranks), ("w", ranks))
        self.inputs = {
            name: k.memory(name, self.rates_of(count) if name == "rate" else self.given(count),
                           "f32" if name == "rate" else "IO", strided=True)
            for name, count in counts
        }  # fmt: skip

    def rates_of(self, ranks: int) -> dict[str, Length]:
        """The axes of rates, a number each."""
        return {"b": self.B, "t": self.T * ranks, "h": self.N_H, "one": 1}

    def matrices(self, name: str) -> Buffer:
        """A matrix of each span."""
        axes = {"b": self.B, "h": self.N_H, "n": self.spans, "d_K": self.N_K, "e_K": self.N_K}
        return self.k.memory(name, axes, "IO")

    def stand(self) -> None:
        """The grid, places, and what is loaded of the span."""
        k, steps = self.k, self.span * self.ranks
        self.stand_in_grid()
        self.t, self.s = (k.iota(name, self.span) for name in "ts")
        self.i, self.j = (k.iota(name, steps) for name in "ij")
        self.d, self.e = (k.iota(name, self.BLOCK_K) for name in "de")
        self.in_d, self.in_e = self.d < self.N_K, self.e < self.N_K
        self.own = {"i": self.i // self.ranks, "j": self.j // self.ranks}
        q = self.vectors("q", self.t, 1)
        k_ = self.vectors("k", self.s, 1)
        u = None if self.rated else self.vectors("u", self.j, self.ranks)
        w = self.vectors("w", self.i, self.ranks)
        self.x = Vectors(q, k_, w.along(i="j") if u is None else u, w)
        self.rate = self.rates() if self.rated else None

    def at_rates(self, x: Tile, row: str = "j") -> Tile:
        """What has a number for each row of U, made of those of W, as U itself has it."""
        if self.rate is None:
            return x
        rate = self.rate if row == "j" else self.rate.along(j=row)
        return x.to("f32") * rate.over(*x.dims)

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

    def io(self, x: Tile) -> Tile:
        """A factor of a product."""
        return x.to(self.IO)

    def dot(self, a: Tile, b: Tile, add: Tile | None = None) -> Tile:
        """A product of matrices; the left factor is none that a product gave turned around."""
        return self.io(a).dot(self.io(b), add, precision=self.PRECISION)

    def small(self) -> None:
        """A [i, j], with zeros where its mask has them, and the same at the rates of U."""
        k, x = self.k, self.x
        u, w = x.u.along(j="i"), x.w.along(i="j")
        later = self.own["i"].over(Dim("i", self.i.dims[0].length), self.j.dims[0])
        L = k.where(later > self.own["j"], self.at_rates(self.dot(u, w), "i"), 0.0)
        self.A = self.io(inverse(Triangle(k, -L, "i", "j"), self.SOLVE, self.PRECISION)).named("A")
        self.A_u = self.io(self.at_rates(self.A))

    def begun(self) -> Tile:
        """G [t, i]."""
        made = self.reached(self.dot(self.x.q, self.x.w), self.t, self.own["i"])
        return self.io(made).named("G")

    def ended(self) -> Tile:
        """H' [s, j]."""
        made = self.at_rates(self.dot(self.x.k, self.x.u))
        return self.io(self.after(made, self.s, self.own["j"])).named("H")

    def arriving(self, buffer: Buffer, row: Tile, again: bool = False) -> Tile:
        """Rows of what arrives from above; read `again`, not kept."""
        return self.k.load(buffer, *self.row_index(row), self.d, where=[self.in_d], apart=again)

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
    H = p.ended()
    made = p.dot(p.begun(), p.A).named("made_left")
    k.store(left, *p.row_index(p.t), p.j, value=p.io(made))
    k.store(right, *p.row_index(p.s), p.j, value=H)
    k.store(moved, *p.row_index(p.t), p.d, value=x.q - p.dot(p.at_rates(made), x.u), where=[p.in_d])
    mid = p.dot(H, p.A).named("mid")
    k.store(ends, *p.row_index(p.s), p.d, value=x.k - p.dot(mid, x.w), where=[p.in_d])
    X = p.dot(x.u, p.A_u).named("X")
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
    d_left_, d_right_ = p.beside("d_left", "f32"), p.beside("d_right", "f32")
    within = {n: p.rows(n, "f32") for n in ("d_q_within", "d_k_within")}
    d_q_, d_k_ = p.result("d_q"), p.result("d_k")
    d_rate = k.memory("d_rate", p.rates_of(ranks), rows="t") if rated else None
    d_u, d_w = None if rated else p.result("d_u", ranks), p.result("d_w", ranks)
    p.stand()
    p.small()
    D = k.load(d_matrix, p.b, p.h, p.n, p.d, p.e, where=[p.in_d, p.in_e], wide=False)

    back = _Back(p, D)
    d_right = k.load(d_right_, *p.row_index(p.s), p.j)
    d_k = p.io(p.arriving(given["d_k_moved"], p.s))
    made = back.of_end(d_k, d_right, p.arriving(given["d_k_moved"], p.s, True))
    p.leave(d_k_, p.s, p.arriving(within["d_k_within"], p.s).over(*made.dims) + made)
    d_left = k.load(d_left_, *p.row_index(p.t), p.j)
    d_q = p.io(p.arriving(given["d_q_moved"], p.t))
    made = back.of_begin(d_q, d_left, p.arriving(given["d_q_moved"], p.t, True))
    p.leave(d_q_, p.t, p.arriving(within["d_q_within"], p.t).over(*made.dims) + made)
    L = back.of_system()
    u = back.of_u(L)
    if d_u is not None:
        p.leave(d_u, p.j, u, ranks)
    if d_rate is not None:
        own = u * p.vectors("w", p.j, ranks, True).to("f32").over(*u.dims)
        at = p.n * (p.span * ranks) + p.j
        k.store(d_rate, p.b, at, p.h, 0, value=own.sum("d"), where=[at < p.T * ranks])
    w = back.of_w(L)
    if d_rate is not None:
        w = w + p.at_rates(u).along(j="i").over(*w.dims)
    p.leave(d_w, p.i, w, ranks)
    return k.done()


class _Back:
    """What the gradients are made of: small matrices first, so that few large ones are held at a
    time, of which those of U [d, j] and of W [d, i] come last. That of A is turned around,
    [j, i], and is added up."""

    def __init__(self, p: Borders, D: Tile):
        x = p.x
        self.p, self.D = p, D
        self.d_X = p.io(-p.dot(D, x.w.along(d="e"))).named("d_X")
        self.N = p.at_rates(p.dot(x.u, self.d_X))

    def of_end(self, d_k: Tile, d_right: Tile, again: Tile) -> Tile:
        """The gradient of k, [s, d], from those of k at the end and of the vectors beside."""
        p, x = self.p, self.p.x
        self.d_k = d_k
        d_mid = p.io(-p.dot(d_k, x.w)).named("d_mid")
        H = p.after(p.at_rates(p.dot(x.u, x.k)), p.s, p.own["j"])
        self.N = p.dot(H, d_mid, self.N)
        self.d_H = p.io(p.after(p.dot(d_mid, p.A, d_right), p.s, p.own["j"])).named("d_H")
        return p.dot(p.at_rates(self.d_H), x.u, again)

    def of_begin(self, d_q: Tile, d_left: Tile, again: Tile) -> Tile:
        """The gradient of q, [d, t], from those of q at the begin and of the vectors beside."""
        p, x = self.p, self.p.x
        self.d_q = d_q
        turned = p.io(d_left.ordered("j", "t") - p.at_rates(p.dot(x.u, d_q))).named("turned")
        self.G = p.begun()
        self.N = p.dot(turned, self.G, self.N)
        self.d_G = p.io(p.reached(p.dot(p.A, turned), p.t, p.own["i"])).named("d_G")
        return p.dot(x.w, self.d_G, again.ordered("d", "t"))

    def of_system(self) -> Tile:
        """The gradient of L, turned around too, [r, c] of earlier rows r and later rows c."""
        p = self.p
        first, last = p.A.along(i="r"), p.A.along(j="c")
        L = -p.dot(p.dot(first, self.N), last)
        r, c = (p.own["i"].along(i=name) for name in "rc")
        return p.k.where(c.over(*L.dims) > r.over(*L.dims), L, 0.0)

    def of_u(self, L: Tile) -> Tile:
        """The gradient of U."""
        p, x = self.p, self.p.x
        u = p.dot(x.k, self.d_H, p.dot(self.d_X, p.A))
        u = p.dot(self.d_q, -p.dot(self.G, p.A), u).along(j="c")
        return p.dot(x.w.along(i="r"), L, u).along(c="j")

    def of_w(self, L: Tile) -> Tile:
        """The gradient of W."""
        p, x = self.p, self.p.x
        X = p.dot(x.u, p.A_u).named("X")
        w = -p.dot(self.D, X).along(e="d")
        w = p.dot(self.d_k, -p.dot(p.ended(), p.A), w)
        w = p.dot(x.q, self.d_G, w)
        L = p.at_rates(L, "c")
        return p.dot(x.u.along(j="c"), L, w.along(i="r")).along(r="i")
