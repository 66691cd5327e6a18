"""Spans of tokens between which gates by channel stand -> tile programs: what is at the borders of
each span, and its gradient. A program has a part of one span of one head.

With a[i] = exp(g[i]), a token's gates, and empty products 1:

    q'[t] = q[t] prod(a[i], i <= t)      k'[s] = k[s] prod(a[i], i > s)      P = prod(a)
    left[t, s] = sum(q[t] prod(a[i], s < i <= t) k[s])      right = I

Within a part of 16 tokens a walk from the last token read to the first multiplies the row of each
reader behind it by its gates; tokens of earlier parts are brought to the begin of the readers'
part, as readers are. All that is multiplied is a product of gates, and no logarithm is taken of it,
so that a gate of 0 gives 0. Logarithms of gates are in a dtype of their own; their gradients are
sums over the span: dg[i] adds up q dq - k dk of the tokens from i on, and what arrives at the end
of the span, which all of its gates are before.
"""

from __future__ import annotations

from archc.attention.between import SPAN
from archc.lowering.attention import LOG2E
from archc.lowering.span_borders import Spans
from archc.tile.compose import Composer, Loop, Tile
from archc.tile.language import Buffer, Program

PART = 16
"""The tokens of a part of a span, whose pairs are one by one."""

PARTS = SPAN // PART


class Gates(Spans):
    """A program under construction: its buffers, and where it stands."""

    def __init__(self, name: str, doc: str):
        k = Composer(name, doc, 4, 1)
        (dtype, gate), (self.PRECISION,) = k.dtypes("IO", "GATE"), k.precisions("PRECISION")
        super().__init__(k, SPAN, dtype)
        self.inputs = {
            name: k.memory(name, self.given(1), own, strided=True)
            for name, own in (("q", dtype), ("k", dtype), ("gate", gate))
        }

    def vector(self, name: str, parts: bool = False) -> Buffer:
        """A vector of each span, or of each part of it."""
        axes = {"b": self.B, "h": self.N_H, "n": self.spans, "d_K": self.N_K}
        own = {"b": self.B, "h": self.N_H, "n": self.spans, "part": PARTS, "d_K": self.N_K}
        return self.k.memory(name, own if parts else axes, "f32")

    def stand(self) -> None:
        """The grid, places, and the vectors of the part's own tokens."""
        k = self.k
        self.stand_in_grid()
        self.part = k.program("part", PARTS)
        self.t, self.j, self.d = k.iota("t", PART), k.iota("j", PART), k.iota("d", self.BLOCK_K)
        self.in_d = self.d < self.N_K
        self.own = self.part * PART + self.t
        self.q, self.key = (self.of_tokens(name, self.own) for name in "qk")

    def of_tokens(self, name: str, token: Tile, *where: Tile) -> Tile:
        """Vectors of some tokens of the span, 0 behind the last one."""
        at = self.n * SPAN + token
        inside = [at < self.T, *where, self.in_d]
        found = self.k.load(self.inputs[name], self.b, at, self.h, self.d, where=inside)
        return found.named(f"b_{name}")

    def gates(self, token: Tile, *where: Tile) -> Tile:
        """Gates of some tokens, 1 behind the last one."""
        return self.k.apply("exp2", self.of_tokens("gate", token, *where) * LOG2E)

    def of_part(self, part: Tile) -> Tile:
        """The product of all gates of a part [d]."""
        total = self.of_tokens("gate", part * PART + self.t).sum("t")
        return self.k.apply("exp2", total * LOG2E)

    def to_end(self, part: Tile, place: Tile) -> Tile:
        """The product of gates behind each token of a part, up to its end."""
        after = self.gates(part * PART + place + 1, place < PART - 1)
        (found,) = self.k.scan(
            lambda x, y: (x[0] * y[0],), place.dims[0].name, after, reverse=True
        )  # fmt: skip
        return found.named("to_end")

    def from_begin(self, part: Tile, place: Tile) -> Tile:
        """The product of gates of a part up to each token."""
        own = self.gates(part * PART + place)
        (found,) = self.k.scan(lambda x, y: (x[0] * y[0],), place.dims[0].name, own)
        return found.named("from_begin")

    def token(self, loop: Loop) -> tuple[Tile, Tile, Tile]:
        """The place of the token that a turn is at, from the last one of the part on, its key and
        its gates."""
        s = (PART - 1 - loop.index).named("s")
        at = self.part * PART + s
        return s, self.of_tokens("k", at), self.gates(at)

    def dot(self, a: Tile, b: Tile, add: Tile | None = None) -> Tile:
        """A product of matrices."""
        return a.to(self.IO).dot(b.to(self.IO), add, precision=self.PRECISION)

    def at_begin(self, part: Tile, gone: Tile) -> Tile:
        """Keys of an earlier part [j, d], behind whose end gates are `gone`."""
        keys = self.of_tokens("k", part * PART + self.j)
        return (keys * self.to_end(part, self.j) * gone.over(*keys.dims)).named("at_begin")


def gates(name: str = "span_gates") -> Program:
    """q at the begin of each span, k at its end, the product of its gates, and the vectors whose
    product is the score within the span."""
    p = Gates(name, "q and k of a span brought to its borders, and the product of its gates.")
    k = p.k
    moved, ends, whole = p.rows("q_moved"), p.rows("k_moved"), p.vector("matrix")
    left, right = p.beside("left"), p.beside("right")
    p.stand()
    rows, one = p.row_index(p.own), k.full(1.0, p.d.dims[0])
    scores = k.full(0.0, p.t.dims[0], p.j.dims[0])
    with k.loop(0, PART, p.q, scores, index="i") as loop:
        q, scores = loop.carried
        s, key, gate = p.token(loop)
        own = (q * key.over(*q.dims)).sum("d").named("own")
        reads = (p.t >= s).named("reads")
        here = reads.over(*scores.dims) & p.j.equals(s)
        loop.next(k.where(reads.over(*q.dims), q * gate, q), k.where(here, own, scores))
    q, scores = loop.results
    k.store(left, *rows, p.part * PART + p.j, value=scores)
    with k.loop(0, p.part, one, index="i") as earlier:
        part, gone = p.part - 1 - earlier.index, earlier.carried[0]
        made = p.dot(q, p.at_begin(part, gone))
        k.store(left, *rows, part * PART + p.j, value=made)
        earlier.next(gone * p.of_part(part))
    k.store(moved, *rows, p.d, value=q * earlier.results[0].over(*q.dims), where=[p.in_d])
    with k.loop(p.part + 1, PARTS, one, index="i") as later:
        nothing = k.full(0.0, p.t.dims[0], p.j.dims[0])
        k.store(left, *rows, later.index * PART + p.j, value=nothing)
        later.next(later.carried[0] * p.of_part(later.index))
    made = p.key * p.to_end(p.part, p.t) * later.results[0].over(*q.dims)
    k.store(ends, *rows, p.d, value=made, where=[p.in_d])
    column = k.iota("column", SPAN)
    same = p.own.over(p.t.dims[0], column.dims[0]).equals(column)
    k.store(right, *rows, column, value=k.where(same, 1.0, 0.0))
    total = earlier.results[0] * p.of_part(p.part)
    index = [p.b, p.h, p.n, p.d]
    k.store(whole, *index, value=total, where=[p.in_d, p.part.equals(PARTS - 1)])
    return k.done()


class _Back(Gates):
    """A program of the gradient: what is of pairs of its own tokens, of its readers with tokens of
    earlier parts, and of its tokens with readers of later ones."""

    def __init__(self, name: str):
        super().__init__(name, "The gradient of what is at the borders of a span.")
        self.given_rows = [self.rows(n, "f32") for n in ("d_q_moved", "d_k_moved")]
        self.d_left = self.beside("d_left", "f32")

    def alone(self) -> tuple[Tile, ...]:
        """The product of gates up to each token, and the gradients of q and k by pairs of the part
        itself."""
        k, nothing = self.k, self.k.full(0.0, *self.q.dims)
        start = (self.k.full(1.0, *self.q.dims), nothing, nothing)
        with k.loop(0, PART, *start, index="i") as loop:
            gone, d_q, d_k = loop.carried
            s, key, gate = self.token(loop)
            reads = (self.t >= s).named("reads")
            place = [*self.row_index(self.own), self.part * PART + s]
            d = k.load(self.d_left, *place, where=[reads])
            through = (gone * d.over(*gone.dims)).named("through")
            row = (through * self.q).sum("t").named("row")
            d_q = d_q + through * key
            d_k = k.where(self.t.over(*d_k.dims).equals(s), row, d_k)
            loop.next(k.where(reads.over(*gone.dims), gone * gate, gone), d_q, d_k)
        return loop.results

    def earlier(self) -> tuple[Tile, Tile]:
        """The product of gates before the part, and the gradient of q at its begin."""
        k, start = self.k, (self.k.full(1.0, self.d.dims[0]), self.k.full(0.0, *self.q.dims))
        with k.loop(0, self.part, *start, index="i") as turn:
            part, (between, total) = self.part - 1 - turn.index, turn.carried
            d = k.load(self.d_left, *self.row_index(self.own), part * PART + self.j)
            made = self.dot(d, self.at_begin(part, between), total)
            turn.next(between * self.of_part(part), made)
        return turn.results[0], turn.results[1]

    def later(self) -> tuple[Tile, Tile]:
        """The product of gates behind the part, and the gradient of k at its end."""
        k, start = self.k, (self.k.full(1.0, self.d.dims[0]), self.k.full(0.0, *self.q.dims))
        with k.loop(self.part + 1, PARTS, *start, index="i") as turn:
            part, (between, total) = turn.index, turn.carried
            readers = self.of_tokens("q", part * PART + self.j)
            readers = readers * self.from_begin(part, self.j) * between.over(*readers.dims)
            d = k.load(self.d_left, *self.row_index(part * PART + self.j), self.own)
            made = self.dot(d.ordered("t", "j"), readers, total)
            turn.next(between * self.of_part(part), made)
        return turn.results[0], turn.results[1]


def of_gates(name: str = "span_gates_gradient") -> Program:
    """The gradients of q and k, where they belong, from those of what `gates` makes; and what those
    of gates are made of: q dq - k dk of each token, and of each part k times what arrives at the
    end."""
    p = _Back(name)
    k, at_end = p.k, p.vector("at_end", True)
    results = [p.result("d_q"), p.result("d_k"), k.memory("d_gate", p.given(1), "f32", rows="t")]
    p.stand()
    gone, d_q, d_k = p.alone()
    arriving = [
        k.load(x, *p.row_index(p.own), p.d, where=[p.in_d]) for x in p.given_rows
    ]  # fmt: skip
    between, total = p.earlier()
    d_q = d_q + (total + arriving[0] * between.over(*d_q.dims)) * gone
    between, total = p.later()
    to_end = p.to_end(p.part, p.t)
    behind = (arriving[1] * between.over(*d_k.dims) * to_end).named("behind")
    d_k = d_k + total * to_end + behind
    k.store(at_end, p.b, p.h, p.n, p.part, p.d, value=(p.key * behind).sum("t"), where=[p.in_d])
    for buffer, made in zip(results, (d_q, d_k, p.q * d_q - p.key * d_k), strict=True):
        p.leave(buffer, p.own, made)
    return k.done()


def sums_of_gates(name: str = "span_gates_sums") -> Program:
    """The gradients of logarithms of gates, in place, from what `of_gates` leaves of each token and
    of each part, and from what arrives at the logarithm of the product of a span."""
    k = Composer(name, "Sums over the tokens of a span from each one on.", 4, 1)
    p = Spans(k, SPAN, "f32")
    axes = {"b": p.B, "h": p.N_H, "n": p.spans, "d_K": p.N_K}
    whole = k.memory("d_matrix", axes, "f32")
    at_end = k.memory("at_end", {"b": p.B, "h": p.N_H, "n": p.spans, "part": PARTS, "d_K": p.N_K})
    d_gate = k.memory("d_gate", p.given(1), "f32", rows="t")
    p.stand_in_grid()
    t, part, p.d = k.iota("t", SPAN), k.iota("part", PARTS), k.iota("d", p.BLOCK_K)
    p.in_d = p.d < p.N_K
    at = p.n * SPAN + t
    own = k.load(d_gate, p.b, at, p.h, p.d, where=[at < p.T, p.in_d])
    (sums,) = k.scan(lambda x, y: (x[0] + y[0],), "t", own, reverse=True)
    ends = k.load(at_end, p.b, p.h, p.n, part, p.d, where=[p.in_d]).sum("part")
    total = ends + k.load(whole, p.b, p.h, p.n, p.d, where=[p.in_d])
    p.leave(d_gate, t, sums + total.over(*sums.dims))
    return k.done()
