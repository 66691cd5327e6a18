"""A fold over a part of the tokens that readers read -> tile programs that go on with another's
results: those of `inside` and `across` of archc/attention/between.py.

A launch has so many spans of readers, and one of tokens read for each: both are as long in every
span, and so far from those of the next. All memory is that of every token of the sequences. A
forward takes sums and the log of the sum of weights from memory and leaves them there with its
tokens more, in float32, or o of readers that are done then. A gradient adds to what is there. No
two programs of a launch have one token.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sympy

from archc.attention.weighted_sum import Bound, Source, WeightedSum
from archc.dims import Axis
from archc.ir.value_names import cotangent
from archc.lowering.attention import NEVER, READ, READER, Sweep, Tokens, clean
from archc.lowering.attention_forward import summed
from archc.lowering.attention_gradient import Gradient, gradient_of_readers, gradient_of_tokens
from archc.lowering.formula import Known
from archc.tile.compose import Tile, ceil_div
from archc.tile.language import Buffer, Program
from archc.tile.unread import swept


class SpanSweep(Sweep):
    """A program of a span of readers, and of the tokens of one that they read."""

    def in_memory(self) -> dict[str, sympy.Expr]:
        """All tokens of a sequence. Spans are a PITCH apart, the first from a token of its own."""
        k = self.k
        self.SPANS, self.TOKENS, self.PITCH = k.sizes("N_SPANS", "TOKENS", "PITCH", varying=True)
        self.FIRST = dict(zip((READER, READ), k.integers("FIRST_T", "FIRST_S"), strict=True))
        return dict.fromkeys((READER, READ), self.TOKENS)

    def layout(self, source: Source) -> dict[str, Any]:
        """What of the memory of a source is told at launch: how far tokens are apart, but not where
        they lie a head after the other."""
        if source.role == "same":
            return super().layout(source)
        _, tokens, *_ = source.type.axes
        return {"rows": self._axis_name(source, tokens)} if tokens.kind == "stream" else {}

    def beside_tokens(self, name: str, dim: Axis, dtype: str) -> Buffer:
        """Memory of a vector for each reader and head, as part of more heads."""
        own = {f"d_{clean(dim.name)}": self.N[dim.name]}
        axes = {"b": self.B, "t": self.TOKENS, **self.axes_of_heads(), **own}
        return self.k.memory(name, axes, dtype, rows="t")

    def stand_among_heads(self) -> None:
        """The grid of sequences, spans and heads, and the places of vectors."""
        super().stand_among_heads()
        span = self.k.program("span", self.SPANS) * self.PITCH
        self.begins = {r: (span + self.FIRST[r]).named(f"{r}_begin") for r in (READER, READ)}
        self.ends = {
            role: (begin + self.lengths[role]).named(f"{role}_end")
            for role, begin in self.begins.items()
        }

    def begin_of(self, role: str) -> Tile | None:
        """Where the tokens of a span begin in memory."""
        return self.begins[role]

    def inside_of(self, tokens: Tokens, role: str) -> Tile:
        """Whether tokens are before the end of their span."""
        return (tokens.at < self.ends[role]).named("in_t" if role == READER else "in_s")


NEAR = 4
"""The levels of the tree, from the smallest spans on, that a forward reads in one walk."""


class NearSweep(SpanSweep):
    """A program of a block of readers, one of the smallest spans, and of all of these before it in
    2^NEAR of them. What moves from level to level is in memory as it is at each, one level after
    the other; a block is of the level at which its span and the reader's part."""

    def in_memory(self) -> dict[str, sympy.Expr]:
        """All tokens of a sequence."""
        self.TOKENS, self.LEVELS = self.k.sizes("TOKENS", "LEVELS", varying=True)
        return dict.fromkeys((READER, READ), self.TOKENS)

    def _size(self, source: Source, axis: Axis) -> sympy.Expr:
        levels = axis.kind == "batch" and source.name in self.fold.moved
        return self.B * self.LEVELS if levels else super()._size(source, axis)

    def stand(self) -> None:
        """The grid: sequences, heads, and blocks of readers, which read what is before them."""
        Sweep.stand_among_heads(self)
        block = self.BLOCK[READER]
        first = (self.k.program("block", ceil_div(self.TOKENS, block)) * block).named("first")
        self.lengths = {READER: self.k.lift(self.TOKENS), READ: first}
        self.level = self.k.lift(0, "i32")
        self.stand_on(first)

    def begin_of(self, role: str) -> Tile | None:
        """Sequences begin at 0."""
        return None

    def inside_of(self, tokens: Tokens, role: str) -> Tile:
        """Whether tokens are before the end."""
        return (tokens.at < self.lengths[role]).named("in_t" if role == READER else "in_s")

    def _range(self, bounds: Sequence[Bound]) -> tuple[Tile, Tile, Tile, Tile]:
        low, whole_low, whole_high, high = super()._range(bounds)
        near = self.BLOCK[READER] * 2**NEAR
        return self.k.apply("max", low, self.first // near * near), whole_low, whole_high, high

    def index(
        self, source: Source, tokens: Tokens | None, part: int = 0, at_table: Tile | int = 0
    ) -> list[Tile | int]:
        """The index of a source along each axis of its memory: what moves, at the level at hand."""
        batch, *found = super().index(source, tokens, part, at_table)
        if source.name in self.fold.moved:
            batch = self.level * self.B + batch
        return [batch, *found]

    def loaded(self, role: str, tokens: Tokens | None, masks: Sequence[Tile]) -> dict[str, Known]:
        """Sources of a kind; with what is read, the level that it is of."""
        if role == READ and tokens is not None and tokens.first is not None:
            zero, one = (self.k.lift(number, "i32") for number in (0, 1))
            self.level = zero
            for level in range(1, NEAR):
                size = self.BLOCK[READ] * 2**level
                alike = (tokens.first // size).equals(self.first // size)
                self.level = self.level + self.k.where(alike, zero, one)
            self.level = self.level.named("level")
        return super().loaded(role, tokens, masks)

    def products(self, mine: dict[str, Known], other: dict[str, Known]) -> dict[str, Known]:
        """The products of a block of pairs, of a reader's vectors at the level at hand."""
        moved = [s for s in self.fold.sources if s.name in self.fold.moved and s.role == READER]
        own = {source.name: self.load(source, self.mine, ()) for source in moved}
        return super().products(mine | own, other)


def near_spans(fold: WeightedSum, name: str = "attend_near_spans") -> Program:
    """The same with what is in spans before of the first NEAR levels."""
    doc = "A block of readers walks the blocks before it of the shortest levels, after its own."
    return _forward(NearSweep(fold, name, doc, READER, 4, 2), True)


def first_span(fold: WeightedSum, name: str = "attend_span") -> Program:
    """o, and the log of the sum of weights, of the first tokens that a reader reads; -inf where it
    reads none of them."""
    doc = "A block of readers walks the tokens of its own span."
    return _forward(SpanSweep(fold, name, doc, READER, 8, 3), False)


def another_span(fold: WeightedSum, name: str = "attend_span_before") -> Program:
    """The same with the tokens of another span more."""
    doc = "A block of readers walks the tokens of the span before, after others."
    return _forward(SpanSweep(fold, name, doc, READER, 8, 3), True)


def _forward(w: SpanSweep, goes_on: bool) -> Program:
    """A block of readers, which have read other tokens before if it `goes_on`."""
    k, values = w.k, w.fold.source(w.fold.values or "")
    assert values.dim is not None
    (done,) = k.sizes("DONE")  # a multiple of 16
    o, sums = (w.beside_tokens(n, values.dim, kind) for n, kind in (("o", w.IO), ("sums", "f32")))
    lse = w.made("lse", READER, None)
    w.stand()
    rows, vector = [w.in_mine], [w.in_mine, w.inside[values.dim.name]]
    before: list[Tile] = []
    if goes_on:
        m = k.load(lse, *w.result_index(None), where=rows, fill=NEVER).named("lse_before")
        acc = k.load(sums, *w.result_index(values.dim), where=vector).named("sums_before")
        total = k.where(m > NEVER, 1.0, 0.0).over(w.rows)
        before = [m, total, acc.over(w.rows, w.dim(values.dim))]
    m, total, acc = summed(w, values, before=before)
    safe = k.where((m > NEVER).named("read", "whether a reader read anything"), total, 1.0)
    w.keep(lse, None, m + k.apply("log", safe))
    made, rest = (acc / safe).named("made"), (w.mine.at < done).named("is_done", "reads no more")
    index = w.result_index(values.dim)
    k.store(o, *index, value=made, where=[*vector, rest])
    k.store(sums, *index, value=made, where=[*vector, ~rest])
    return swept(k.done())


class SpanGradient(SpanSweep, Gradient):
    """A program of the gradient that adds to what is there. That of the `first` spans is the only
    one that has what is `moved`, and stores it."""

    def __init__(self, fold: WeightedSum, name: str, doc: str, held: str, ahead: int, first: bool):
        super().__init__(fold, name, doc, held, 8, ahead)
        self.alone = {*fold.moved} if first else set[str]()

    def made_of(self, name: str, values: Source | None) -> Buffer:
        """Memory of what arrives, or of the forward's sums."""
        assert values is not None and values.dim is not None
        return self.beside_tokens(name, values.dim, self.IO)

    def _result(self, source: Source) -> Buffer:
        role, name = READ if source.role == READ else READER, cotangent(source.name)
        name, dim = name.replace(".", "_"), source.dim
        if dim is None or source.name not in self.fold.moved:
            return self.made(name, role, dim)
        letter, own = "t" if role == READER else "s", f"d_{clean(dim.name)}"
        axes = {"b": self.B, **self.axes_of_heads(), letter: self.TOKENS, own: self.N[dim.name]}
        return self.k.memory(name, axes)

    def _index_of(self, source: Source) -> list[Tile]:
        """Indices of a gradient of the tokens held."""
        dim: Axis | None = source.dim
        if dim is None or source.name not in self.fold.moved:
            return self.result_index(dim)
        return [self.b, *self.among_heads(), self.mine.at, self.places[dim.name]]

    def leave(self, made: Sequence[Tile]) -> None:
        """Add every gradient to what there is of it, if there may be any."""
        k = self.k
        for source, sum in zip(self.wanted, made, strict=True):
            buffer, index = self.results[source.name], self._index_of(source)
            inside = [] if source.dim is None else [self.inside[source.dim.name]]
            where = [self.in_mine, *inside]
            total = sum
            if source.name not in self.alone:
                total = k.load(buffer, *index, where=where) + sum
            k.store(buffer, *index, value=total, where=where)


def span_readers(
    fold: WeightedSum, name: str = "attend_span_readers", first: bool = False
) -> Program:
    """The gradients of what is of the reader, or of the head, with a span more; and delta."""
    doc = "Gradients of readers: a block of them walks the tokens of a span."
    return gradient_of_readers(SpanGradient(fold, name, doc, READER, 3, first))


def span_tokens(
    fold: WeightedSum, name: str = "attend_span_tokens", first: bool = False
) -> Program:
    """The gradients of what is of the token read, with the readers of a span more."""
    doc = "Gradients of tokens read: a block of them walks the readers of a span."
    return gradient_of_tokens(SpanGradient(fold, name, doc, READ, 2, first))
