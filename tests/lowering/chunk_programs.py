"""Programs that are made of the functions for chunks alone: what tests and benchmarks launch.

A chunk [C rows] of a head is a program. Buffers are as kernels have
them: tokens `[B, T, H, K]`, what is made of chunks `[B, n, H, C, ...]`.
"""

from __future__ import annotations

from dataclasses import dataclass

import sympy

from archc.lowering.pairs import Made, Products, Weighed, grams, mixes
from archc.lowering.row_decays import Decays
from archc.lowering.solve import Triangle, inverse
from archc.tile.compose import Composer, ceil_div, size
from archc.tile.handle import Tile
from archc.tile.language import Buffer, Program


@dataclass(frozen=True)
class Place:
    """Where a program stands: its chunk of a head, and its tokens."""

    k: Composer
    b: Tile
    n: Tile
    h: Tile
    i: Tile
    t: Tile
    in_t: Tile
    K: sympy.Expr

    def tokens(self, buffer: Buffer, dim: Tile) -> Tile:
        """A tile of tokens, in float32."""
        where = (self.in_t, dim < self.K)
        return self.k.load(buffer, self.b, self.t, self.h, dim, where=where)

    def rows(self, buffer: Buffer, dim: Tile, i: Tile | None = None) -> Tile:
        """Rows of a chunk, as they are in memory."""
        at = self.i if i is None else i
        where = [dim < self.K]
        return self.k.load(buffer, self.b, self.n, self.h, at, dim, where=where, wide=False)

    def matrix(self, buffer: Buffer) -> Tile:
        """A matrix of rows by rows, in float32."""
        j = self.i.along(i="j")
        return self.k.load(buffer, self.b, self.n, self.h, self.i, j)


def _composer(name: str, doc: str) -> Composer:
    k = Composer(name, doc)
    k.dtypes("IO", "DOT", "SUMS")
    k.precisions("PRECISION")
    return k


def _place(k: Composer) -> tuple[Place, dict[str, sympy.Expr]]:
    """The grid of a kernel of chunks."""
    B, T, H, K = k.sizes("B", "T", "H", "K")
    C, BLOCK = k.lengths("C", "BLOCK")
    k.fixed(size("LEVELS"))
    b, n, h = k.program("b", B), k.program("n", ceil_div(T, C)), k.program("h", H)
    i = k.iota("i", C)
    t = (n * C + i).named("t")
    place = Place(k, b, n, h, i, t, (t < T).named("in_t"), K)
    return place, {"B": B, "T": T, "H": H, "K": K, "C": C, "BLOCK": BLOCK}


def _chunked(k: Composer, name: str, dtype: str, s: dict[str, sympy.Expr], matrix: bool) -> Buffer:
    """A buffer of chunks, of rows by rows or by channels."""
    last = {"j": s["C"]} if matrix else {"d": s["K"]}
    axes = {"b": s["B"], "n": ceil_div(s["T"], s["C"]), "h": s["H"], "i": s["C"], **last}
    return k.buffer(name, dtype=dtype, **axes)


def _decays(p: Place, sums: Buffer, dim: Tile, exclusive: bool, from_memory: bool) -> Decays:
    """Decays of the channels `dim`."""

    def at(i: Tile) -> Tile:
        return p.rows(sums, dim, i)

    before = None
    if exclusive:
        last = p.k.apply("max", p.i - 1, 0)
        before = p.k.where(p.i > 0, at(last), p.k.full(0.0).to("SUMS")).named("before")
    G = p.rows(sums, dim).named("G")
    near = at if from_memory else None
    return Decays(p.k, G, "i", "j", size("LEVELS"), "DOT", "PRECISION", before, near)


def scores(exclusive: bool = False, from_memory: bool = True) -> Program:
    """Both matrices of a delta rule with a decay a channel, part by part of the channels:

    scores[i, j] = q_i exp(span) k_j for j <= i,   A[i, j] = -beta_i k_i exp(span) k_j, j < i"""
    k = _composer("intra_chunk_scores", "Scores of queries and of keys, a chunk a program.")
    p, s = _place(k)
    B, T, H, K = (s[name] for name in "BTHK")
    q, key = (k.buffer(name, b=B, t=T, h=H, d=K, dtype="IO") for name in ("q", "k"))
    beta = k.buffer("beta", b=B, t=T, h=H, dtype="IO")
    sums = _chunked(k, "sums", "SUMS", s, False)
    made, A = _chunked(k, "scores", "IO", s, True), _chunked(k, "A", "f32", s, True)
    b_beta = k.load(beta, p.b, p.t, p.h, where=[p.in_t])

    def part(index: Tile, strong: bool) -> Made:
        dim = (index * s["BLOCK"] + k.iota("d", s["BLOCK"])).named("dim")
        b_q, b_k = p.tokens(q, dim).named("b_q"), p.tokens(key, dim).named("b_k")
        d = _decays(p, sums, dim, exclusive, from_memory)
        return d, ((b_q, b_k), (-b_beta * b_k, b_k))

    (i,), (j,) = p.i.dims, p.i.along(i="j").dims
    own = (not exclusive, False)
    tiles = grams(Products(k, i, j, (ceil_div(K, s["BLOCK"]),) * 2, part, own))
    for buffer, tile in zip((made, A), tiles, strict=True):
        k.store(buffer, p.b, p.n, p.h, p.i, p.i.along(i="j"), value=tile)
    return k.done()


def scores_gradient(exclusive: bool = False, from_memory: bool = True) -> Program:
    """The gradient of both matrices, part by part of the channels: of q, of the rows -beta k, of
    the columns k and of the log gates, in one pass."""
    k = _composer("intra_chunk_scores_gradient", "d_q, d_rows, d_k and d_gates of the scores.")
    p, s = _place(k)
    B, T, H, K = (s[name] for name in "BTHK")
    q, key = (k.buffer(name, b=B, t=T, h=H, d=K, dtype="IO") for name in ("q", "k"))
    beta = k.buffer("beta", b=B, t=T, h=H, dtype="IO")
    sums = _chunked(k, "sums", "SUMS", s, False)
    d_scores, d_A = (_chunked(k, name, "IO", s, True) for name in ("d_scores", "d_A"))
    found = {n: _chunked(k, n, "f32", s, False) for n in ("d_q", "d_rows", "d_k", "d_gates")}
    b_beta = k.load(beta, p.b, p.t, p.h, where=[p.in_t])
    b_scores, b_A = p.matrix(d_scores), p.matrix(d_A)

    def channels(index: Tile) -> Tile:
        return (index * s["BLOCK"] + k.iota("d", s["BLOCK"])).named("dim")

    def part(index: Tile) -> tuple[Decays, tuple[Weighed, ...]]:
        dim = channels(index)
        b_q, b_k = p.tokens(q, dim).named("b_q"), p.tokens(key, dim).named("b_k")
        d = _decays(p, sums, dim, exclusive, from_memory)
        enter = "entering" if exclusive else ""
        first = Weighed(b_scores, b_q, b_k, "d_q", "d_k", "d_gates", enter)
        return d, (first, Weighed(b_A, -b_beta * b_k, b_k, "d_rows", "d_k", "d_gates", enter))

    def store(index: Tile, made: dict[str, Tile]) -> None:
        dim = channels(index)
        for name, buffer in found.items():
            k.store(buffer, p.b, p.n, p.h, p.i, dim, value=made[name], where=[dim < K])

    parts = ceil_div(K, s["BLOCK"])
    with k.loop(0, parts, index="part") as turn:
        dim = channels(turn.index)
        rows = (p.tokens(q, dim), p.tokens(key, dim))
        store(turn.index, _finished(p, b_scores, rows, mixes(*part(turn.index))))
    return k.done()


def _finished(
    p: Place, weights: Tile, rows: tuple[Tile, Tile], made: dict[str, Tile]
) -> dict[str, Tile]:
    """With what rows are to themselves, unless they decay by the gates between them alone, and
    gates summed from the last row on."""
    gates = made.pop("d_gates").scan("sum", "i", reverse=True)
    if "entering" in made:
        return {**made, "d_gates": gates - made.pop("entering")}
    own = p.k.where(p.i.equals(p.i.along(i="j")), weights, 0.0).sum("j")
    b_q, b_k = rows
    d_q, d_k = made["d_q"] + own * b_k, made["d_k"] + own * b_q
    return {**made, "d_q": d_q, "d_k": d_k, "d_gates": gates}


def solve_tril() -> Program:
    """(I - A)^-1 of every chunk."""
    k = _composer("solve_tril", "(I - A)^-1, a chunk a program.")
    k.dtypes("SOLVE")
    p, s = _place(k)
    A, made = _chunked(k, "A", "f32", s, True), _chunked(k, "inverse", "IO", s, True)
    tile = inverse(Triangle(k, p.matrix(A), "i", "j"), "SOLVE", "PRECISION")
    k.store(made, p.b, p.n, p.h, p.i, p.i.along(i="j"), value=tile)
    return k.done()
