"""Spans of tokens between which gates by channel stand -> tile programs: what is at the borders of
each span, and its gradient. A program has one span of one head.

With a[i] = exp(g[i]), a token's gates, and empty products 1:

    q'[t] = q[t] prod(a[i], i <= t)      k'[s] = k[s] prod(a[i], i > s)      P = prod(a)
    left[t, s] = sum(q[t] prod(a[i], s < i <= t) k[s])      right = I

A walk from the last token read to the first multiplies the row of each reader behind it by its
gates: all that is multiplied is at most 1, and no logarithm is taken of it, so that a gate of 0
gives 0. Gradients of logarithms of gates are sums over the span: dg[i] adds up q dq - k dk of the
tokens from i on, and what arrives at the end of the span, which all of its gates are before.
"""

from __future__ import annotations

from archc.attention.between import SPAN
from archc.lowering.attention import LOG2E
from archc.lowering.span_borders import Spans
from archc.tile.compose import Composer, Loop, Tile
from archc.tile.language import Buffer, Program


class Gates(Spans):
    """A program under construction: its buffers, and where it stands."""

    def __init__(self, name: str, doc: str):
        k = Composer(name, doc, 8, 1)
        (dtype,) = k.dtypes("IO")
        super().__init__(k, SPAN, dtype)
        self.inputs = {
            name: k.memory(name, self.given(1), own, strided=True)
            for name, own in (("q", "IO"), ("k", "IO"), ("gate", "f32"))
        }

    def vector(self, name: str) -> Buffer:
        """A vector of each span."""
        axes = {"b": self.B, "h": self.N_H, "n": self.spans, "d_K": self.N_K}
        return self.k.memory(name, axes, "f32")

    def stand(self) -> None:
        """The grid, places, and the vectors of readers."""
        k = self.k
        self.stand_in_grid()
        self.t, self.j, self.d = k.iota("t", SPAN), k.iota("j", SPAN), k.iota("d", self.BLOCK_K)
        self.in_d = self.d < self.N_K
        self.q = self.of_tokens("q", self.t)

    def of_tokens(self, name: str, token: Tile, *where: Tile) -> Tile:
        """Vectors of some tokens of the span, 0 behind the last one."""
        at = self.n * SPAN + token
        inside = [at < self.T, *where, self.in_d]
        found = self.k.load(self.inputs[name], self.b, at, self.h, self.d, where=inside)
        return found.named(f"b_{name}")

    def gates(self, token: Tile, *where: Tile) -> Tile:
        """Gates of some tokens, 1 behind the last one."""
        return self.k.apply("exp2", self.of_tokens("gate", token, *where) * LOG2E)

    def to_end(self) -> Tile:
        """The product of gates behind each token [t, d]."""
        after = self.gates(self.t + 1, self.t < SPAN - 1)
        (found,) = self.k.scan(lambda x, y: (x[0] * y[0],), "t", after, reverse=True)
        return found.named("to_end")

    def token(self, loop: Loop) -> tuple[Tile, Tile, Tile]:
        """The token that a turn is at, its key and its gates."""
        s = (SPAN - 1 - loop.index).named("s")
        return s, self.of_tokens("k", s), self.gates(s)


def gates(name: str = "span_gates") -> Program:
    """q at the begin of each span, k at its end, the product of its gates, and the vectors whose
    product is the score within the span."""
    p = Gates(name, "q and k of a span brought to its borders, and the product of its gates.")
    k = p.k
    moved, ends, whole = p.rows("q_moved"), p.rows("k_moved"), p.vector("matrix")
    left, right = p.beside("left"), p.beside("right")
    p.stand()
    scores = k.full(0.0, p.t.dims[0], p.j.dims[0])
    with k.loop(0, SPAN, p.q, scores, index="i") as loop:
        q, scores = loop.carried
        s, key, gate = p.token(loop)
        own = (q * key.over(*q.dims)).sum("d").named("own")
        reads = (p.t >= s).named("reads")
        here = reads.over(*scores.dims) & p.j.equals(s)
        loop.next(k.where(reads.over(*q.dims), q * gate, q), k.where(here, own, scores))
    q, scores = loop.results
    k.store(moved, *p.row_index(p.t), p.d, value=q, where=[p.in_d])
    k.store(left, *p.row_index(p.t), p.j, value=scores)
    one = k.where(p.t.over(*scores.dims).equals(p.j), 1.0, 0.0)
    k.store(right, *p.row_index(p.t), p.j, value=one)
    made = p.of_tokens("k", p.t) * p.to_end()
    k.store(ends, *p.row_index(p.t), p.d, value=made, where=[p.in_d])
    total = k.apply("exp2", p.of_tokens("gate", p.t).sum("t") * LOG2E)
    k.store(whole, p.b, p.h, p.n, p.d, value=total, where=[p.in_d])
    return k.done()


def of_gates(name: str = "span_gates_gradient") -> Program:
    """The gradients of q, k and the logarithms of gates, where they belong, from those of what
    `gates` makes; at the product of a span that of its logarithm arrives."""
    p = Gates(name, "The gradient of what is at the borders of a span.")
    k = p.k
    given = {n: p.rows(n, "f32") for n in ("d_q_moved", "d_k_moved")}
    whole, d_left = p.vector("d_matrix"), p.beside("d_left", "f32")
    results = [p.result("d_q"), p.result("d_k"), k.memory("d_gate", p.given(1), "f32", rows="t")]
    p.stand()
    nothing = k.full(0.0, *p.q.dims)
    start = (k.full(1.0, *p.q.dims), nothing, nothing)
    with k.loop(0, SPAN, *start, index="i") as loop:
        gone, d_q, d_k = loop.carried
        s, key, gate = p.token(loop)
        reads = (p.t >= s).named("reads")
        d = k.load(d_left, *p.row_index(p.t), s, where=[reads])
        through = (gone * d.over(*gone.dims)).named("through")
        row = (through * p.q).sum("t").named("row")
        d_q = d_q + through * key
        d_k = k.where(p.t.over(*d_k.dims).equals(s), row, d_k)
        loop.next(k.where(reads.over(*gone.dims), gone * gate, gone), d_q, d_k)
    gone, d_q, d_k = loop.results
    d_q = d_q + k.load(given["d_q_moved"], *p.row_index(p.t), p.d, where=[p.in_d]) * gone
    behind = k.load(given["d_k_moved"], *p.row_index(p.t), p.d, where=[p.in_d]) * p.to_end()
    key = p.of_tokens("k", p.t)
    arriving = k.load(whole, p.b, p.h, p.n, p.d, where=[p.in_d])
    at_end = ((key * behind).sum("t") + arriving).named("at_end")
    d_k = d_k + behind
    (sums,) = k.scan(
        lambda x, y: (x[0] + y[0],), "t", p.q * d_q - key * d_k, reverse=True
    )  # fmt: skip
    for buffer, made in zip(results, (d_q, d_k, sums + at_end), strict=True):
        p.leave(buffer, p.t, made)
    return k.done()
