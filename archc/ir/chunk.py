"""Chunk ops: what the chunked form of a recurrence needs beyond the ops of the layer IR.

A chunked form is layer IR whose values run along tokens, or along chunks `n` (a stream) of C rows
`i` (a dim), the last chunk filled up with zeros. What does not depend on the carried state is
computed for all chunks at once; a `Fold` along the chunks carries the state.

Between two rows of a chunk a value decays by exp(span[i, j]), where

    span[i, j] = sum of the log gates of the rows r with j < r <= i    ("exclusive": j < r < i)

Spans are sums, never differences of longer sums, so that gates of -1000 lose no digits and gates of
-inf are no NaN. Ops that keep the pairs j <= i, or with `strict` j < i, leave out the others.

Types: `chunk_typing.py`. What each op computes: `chunk_meaning.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import sympy

from archc.dims import Axis, size_symbol
from archc.ir.graph import Graph, Node
from archc.source import Span

CHUNK = size_symbol("chunk")
"""The number of tokens in a chunk: chosen when the form runs."""


# --- between tokens and chunks ------------------------------------------------------------------


@dataclass(frozen=True)
class Chunks:
    """A value along `stream`, cut into chunks: `chunk` and `row` take the stream's place.

    The last chunk is filled up with `fill`. With `steps`, the micro-steps of a token (an axis of
    the operand) are rows one after the other. The dims `outer` (heads) stand before the row.
    """

    stream: str
    chunk: Axis
    row: Axis
    fill: int = 0
    steps: str | None = None
    outer: tuple[str, ...] = ()


@dataclass(frozen=True)
class Tokens:
    """The inverse of Chunks: rows of chunks as tokens along `stream` again, without the filling."""

    chunk: str
    row: str
    stream: Axis
    steps: Axis | None = None


@dataclass(frozen=True)
class Stack:
    """Its operands, all of one type, along a new first dim."""

    axis: Axis


@dataclass(frozen=True)
class Select:
    """The element of an axis at a fixed index; -1 is the last."""

    axis: str
    index: int


@dataclass(frozen=True)
class Place:
    """The transpose of Select: its operand at `index` of a new dim `axis`, and 0 elsewhere."""

    axis: Axis
    index: int


# --- along a stream, and along further axes -----------------------------------------------------


@dataclass(frozen=True)
class Last:
    """The last value along `stream` (with `reverse` the first), for operands: a value along it, and
    what stands for it where the stream is empty. Of a state of a Fold: the state in the end."""

    stream: str
    reverse: bool = False


@dataclass(frozen=True)
class AtLast:
    """The transpose of Last: its operand at the last position of `stream` (with `reverse` the
    first), and 0 elsewhere."""

    stream: Axis
    reverse: bool = False


@dataclass(frozen=True)
class Unwindow:
    """The transpose of Window: at each token of `stream` the sum over the places in which the runs
    hold it. Without a stride the operand runs along `stream`, else along `blocks`."""

    stream: Axis
    width: str
    stride: sympy.Expr | None = None
    blocks: str | None = None


@dataclass(frozen=True)
class Expand:
    """Its operand, the same at every position of further axes."""

    axes: tuple[Axis, ...]


# --- along the rows of a chunk ------------------------------------------------------------------


@dataclass(frozen=True)
class Sums:
    """Cumulative sums along `axis`, from the first element, or with `reverse` from the last.

    "exclusive": the sum before the element's own addition, made by shifting, not by subtracting.
    `gates`: of log gates, whose differences are wanted; what is less than LEAST_GATE counts as it.
    """

    axis: str
    reverse: bool = False
    exclusive: bool = False
    gates: bool = False


LEAST_GATE = -104.0
"""exp of it is 0 in float32: a log gate can be no less. Sums of such gates stay small enough that
differences of them are right."""

SUMS = "sums"
"""The anchor of pairs whose last operand is not gates but sums of them."""


@dataclass(frozen=True)
class Move:
    """The value `steps` rows earlier along `axis` (later, if negative); `fill` where there is none.
    The axis may be a stream: its `Move` backwards is the transpose of a Shift."""

    axis: str
    steps: int
    fill: int = 0


@dataclass(frozen=True)
class Scan:
    """h[i] = a[i] * h[i-1] + b[i] along the rows, for operands a, b and h[-1] (no row).

    `kind` "linear", or "max-plus": h[i] = max(a[i] + h[i-1], b[i]). With `matrix` = (row, col), a
    is a matrix per row, or the same for all: h[i] = a[i] @ h[i-1] + b[i], where h has the axis
    `col` and a also `row`, the same axis of the result. `reverse` walks from the last row.
    """

    axis: str
    kind: str = "linear"
    matrix: tuple[str, str] | None = None
    reverse: bool = False


# --- between the rows of a chunk ----------------------------------------------------------------


@dataclass(frozen=True)
class Spans:
    """span[i, j] of log gates along `row`, with `col` as a new axis after it; -inf where a pair is
    not kept, so that its exponential is 0."""

    row: str
    col: Axis
    strict: bool = False
    exclusive: bool = False


@dataclass(frozen=True)
class SpansGradient:
    """The gates' share of a cotangent of Spans [row, col]: at r the sum over i >= r > j of it."""

    row: str
    col: str
    strict: bool = False
    exclusive: bool = False


@dataclass(frozen=True)
class Gram:
    """A[i, j] = sum over the dims `over` of a[i] exp(span[i, j]) b[j], for operands a, b, g.

    All three run along `row`; in the result `col` stands for the rows of b. The log gate g has at
    least one of the dims summed. `anchor` says how exponents are made: "halves" sums gates from the
    border between the halves of a binary tree of the rows, which is right for any gate; "middle"
    takes one product, and needs |g| * rows small enough for exp (see `archc.numerics`); "sums"
    takes differences: in place of g the operand is Sums of it (kernels, where they lie in memory).
    """

    over: tuple[str, ...]
    row: str
    col: Axis
    strict: bool = False
    exclusive: bool = False
    anchor: str = "halves"


@dataclass(frozen=True)
class Mix:
    """o[i] = sum over j of A[i, j] exp(span[i, j]) b[j], for operands A, b, g: decayed values.

    g has the row and dims of b. `transpose`: o[j] = sum over i of A[i, j] exp(span[i, j]) b[i].
    """

    row: str
    col: str
    strict: bool = False
    exclusive: bool = False
    transpose: bool = False
    anchor: str = "halves"


@dataclass(frozen=True)
class GateGradient:
    """At r the sum over i >= r > j (exclusive: i > r) of a[i] dA[i, j] exp(span[i, j]) b[j], for
    operands dA, a, b, g: the gates' share of the cotangent of a Gram, and of a Mix. It has the type
    of g. Every addend counts once, nothing is subtracted."""

    row: str
    col: str
    strict: bool = False
    exclusive: bool = False
    anchor: str = "halves"


@dataclass(frozen=True)
class Inverse:
    """(I - A)^-1 of a matrix A[row, col] that is 0 on the diagonal and above."""

    row: str
    col: str


# --- structure ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Detach:
    """Its operand; no gradient passes."""


@dataclass(frozen=True, eq=False)
class Conjugate:
    """z with M z = b, where M is symmetric, positive definite and given by its products alone.

    `body` computes the product M p from its input "p" and from inputs named as in `captures`; its
    output is "product". Operands: b, then one for each capture. Axes of `over` are those of the
    system; every other axis is a system of its own. The meaning is the exact solution;
    `iterations` bounds the conjugate gradients (None: until it is exact).
    """

    over: tuple[str, ...]
    captures: tuple[str, ...]
    body: Graph
    iterations: sympy.Expr | None = None


ChunkOp = (
    Chunks | Tokens | Stack | Select | Place | Last | AtLast | Unwindow | Expand | Sums | Move
    | Scan | Spans | SpansGradient | Gram | Mix | GateGradient | Inverse | Detach | Conjugate
)  # fmt: skip

CHUNK_OPS: tuple[type, ...] = (
    Chunks, Tokens, Stack, Select, Place, Last, AtLast, Unwindow, Expand, Sums, Move, Scan, Spans,
    SpansGradient, Gram, Mix, GateGradient, Inverse, Detach, Conjugate,
)  # fmt: skip
"""Every chunk op; tables about ops have these beside those of the layer IR."""


@dataclass(frozen=True, eq=False)
class ChunkForm:
    """The chunked form of a Fold, derived from its body.

    `forward`: inputs named as the Fold's captures, as they are outside (along the stream), and
    `S[0]` for each state; outputs: the Fold's results that are read, along the stream, `S[T]` for
    each state after the last token, and the values `saved` for the gradient. `backward`: inputs of
    `forward` that it still needs, the saved values, and `d.<output>` for each output that is no
    saved value; outputs `d.<input>` for each real input. `notes` say, for a reader, how and why.
    """

    forward: Graph
    backward: Graph | None = None
    saved: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Bound:
    """A promise of the spec: at every token the value `name` lies between `low` and `high`.

    `span` is where that value comes from, so that another of the same name is not meant; None for
    an input. `text` is the rule as it was written, "" for one that the compiler has found out.
    """

    name: str
    low: float | Fraction
    high: float | Fraction
    open_low: bool = False
    open_high: bool = False
    span: Span | None = None
    text: str = ""

    def of(self, node: Node) -> bool:
        """Whether it is about the value of a node."""
        return node.name == self.name and self.span in (None, node.span)


@dataclass(frozen=True)
class ChunkRules:
    """What a layer says about its chunked form: how many tokens are in a chunk (None: as the
    backend likes), that the loop is meant, what is known of its values, and the composition laws
    that it gives, as they were written."""

    size: int | None = None
    sequential: bool = False
    bounds: tuple[Bound, ...] = ()
    laws: tuple[str, ...] = ()

    def lines(self) -> tuple[str, ...]:
        """The rules as a spec writes them."""
        size = [f"size {self.size}"] if self.size is not None else []
        written = [bound.text for bound in self.bounds if bound.text]
        loop = ["sequential"] if self.sequential else []
        return (*size, *loop, *self.laws, *dict.fromkeys(written))


NO_RULES = ChunkRules()


def start(state: str) -> str:
    """The name of a state before the first token, in a chunked form."""
    return f"{state}[0]"


def final(state: str) -> str:
    """The name of a state after the last token, in a chunked form."""
    return f"{state}[T]"


def cotangent(name: str) -> str:
    """The name of the gradient with respect to an input or an output."""
    return f"d.{name}"
