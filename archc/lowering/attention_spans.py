"""A fold over a part of the tokens that readers read -> tile programs that go on with another's
results: those of `inside` and `across` of archc/attention/between.py.

Everything that is made may be a view: the readers of every other span. A forward takes o and the
log of the sum of weights from memory and leaves them there with its tokens more, in float32; a
gradient adds to what is there. No two programs of a launch have one token.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from archc.attention.weighted_sum import Source, WeightedSum
from archc.dims import Axis
from archc.ir.value_names import cotangent
from archc.lowering.attention import NEVER, READ, READER, Sweep, clean
from archc.lowering.attention_forward import summed
from archc.lowering.attention_gradient import Gradient, gradient_of_readers, gradient_of_tokens
from archc.tile.compose import Tile
from archc.tile.language import Buffer, Program


def of_view(w: Sweep, name: str, role: str, dim: Axis | None, dtype: str = "f32") -> Buffer:
    """Memory of a result as a view: a vector, or a number, for each token and each head."""
    heads = w.axes_of_heads()
    tokens: dict[str, Any] = {"t": w.T} if role == READER else {"s": w.S}
    axes: dict[str, Any] = {"b": w.B, **heads, **tokens}
    if dim is not None:
        axes = {"b": w.B, **tokens, **heads, f"d_{clean(dim.name)}": w.N[dim.name]}
    return w.k.memory(name, axes, dtype, strided=True)


def first_span(fold: WeightedSum, name: str = "attend_span") -> Program:
    """o, and the log of the sum of weights, of the first tokens that a reader reads; -inf where it
    reads none of them."""
    doc = "A block of readers walks the tokens of its own span."
    return _forward(Sweep(fold, name, doc, READER, 8, 3), False)


def another_span(fold: WeightedSum, name: str = "attend_span_before") -> Program:
    """The same with the tokens of another span more."""
    doc = "A block of readers walks the tokens of the span before, after others."
    return _forward(Sweep(fold, name, doc, READER, 8, 3), True)


def _forward(w: Sweep, goes_on: bool) -> Program:
    """A block of readers, which have read other tokens before if it `goes_on`."""
    k, values = w.k, w.fold.source(w.fold.values or "")
    assert values.dim is not None
    o = of_view(w, "o", READER, values.dim)
    lse = of_view(w, "lse", READER, None)
    w.stand()
    rows, vector = [w.in_mine], [w.in_mine, w.inside[values.dim.name]]
    before: list[Tile] = []
    if goes_on:
        m = k.load(lse, *w.result_index(None), where=rows, fill=NEVER).named("lse_before")
        acc = k.load(o, *w.result_index(values.dim), where=vector).named("o_before")
        total = k.where(m > NEVER, 1.0, 0.0).over(w.rows)
        before = [m, total, acc.over(w.rows, w.dim(values.dim))]
    m, total, acc = summed(w, values, before=before)
    safe = k.where((m > NEVER).named("read", "whether a reader read anything"), total, 1.0)
    w.keep(lse, None, m + k.apply("log", safe))
    w.keep(o, values.dim, acc / safe)
    return k.done()


class SpanGradient(Gradient):
    """A program of the gradient that adds to what is there."""

    def made(self, name: str, role: str, dim: Axis | None, dtype: str = "f32") -> Buffer:
        """Memory for a result, or of what arrives, as a view."""
        return of_view(self, name, role, dim, dtype)

    def _result(self, source: Source) -> Buffer:
        role = READER if source.role == "same" else source.role
        return self.made(cotangent(source.name).replace(".", "_"), role, source.dim)

    def leave(self, made: Sequence[Tile]) -> None:
        """Add every gradient to what there is of it."""
        for source, sum in zip(self.wanted, made, strict=True):
            buffer, dim = self.results[source.name], source.dim
            where = [self.in_mine, *([self.inside[dim.name]] if dim is not None else [])]
            before = self.k.load(buffer, *self.result_index(dim), where=where)
            self.keep(buffer, dim, before + sum)


def span_readers(fold: WeightedSum, name: str = "attend_span_readers") -> Program:
    """The gradients of what is of the reader, or of the head, with a span more; and delta."""
    doc = "Gradients of readers: a block of them walks the tokens of a span."
    return gradient_of_readers(SpanGradient(fold, name, doc, READER, 8, 3))


def span_tokens(fold: WeightedSum, name: str = "attend_span_tokens") -> Program:
    """The gradients of what is of the token read, with the readers of a span more."""
    doc = "Gradients of tokens read: a block of them walks the readers of a span."
    return gradient_of_tokens(SpanGradient(fold, name, doc, READ, 8, 2))
