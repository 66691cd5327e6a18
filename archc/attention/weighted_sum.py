"""The parts of a weighted sum over the tokens read, as kernels need to know them.

    o[t] = sum over s of w(t, s) v[s],    w = softmax of a score over s, or the score itself

or the softmax times a factor of the pair, a formula as the score is.

A score is a formula of pairs: a graph of elementwise ops whose inputs are products of a vector of
the reader with a vector of the token read (`Dot`), and numbers of the reader, of the token read or
of the head (`Source`). Everything else of the body is done once a token, outside.
"""

from __future__ import annotations

from dataclasses import dataclass

import sympy

from archc.dims import Axis
from archc.ir.graph import Graph, Type
from archc.ir.value_names import cotangent, primal
from archc.source import Span

RESERVED = ("o", "lse", "d_o", "d_lse", "delta", "b", "t", "s", "m", "total", "acc", "p", "borders",
            "seed")  # fmt: skip
"""Names of values in kernels that no source can have."""


PAIRS = ("score", "factor")
"""The numbers of a pair that its weight is made of."""


@dataclass(frozen=True)
class Source:
    """A value of the body that kernels read: `node` is its id there, and `role` says whether it is
    of the reader, of the token read ("read"), or the same for all tokens ("same").

    Its axes are batch, the tokens, heads, and a vector's `dim`. `shares` tells, of an axis of
    heads, the head of the pair that it is read at, and how many of these share one. `summed`: what
    enters is its running sum along the tokens, as sums from the token read to the reader are
    differences of it; two numbers a token, as one float32 has not the digits. `table` is the axis
    along which it is read at an index of each pair.
    """

    name: str
    node: int
    type: Type
    role: str
    shares: tuple[tuple[str, str, sympy.Expr], ...] = ()
    dim: Axis | None = None
    summed: bool = False
    table: Axis | None = None

    @property
    def real(self) -> bool:
        """Whether it holds real numbers."""
        return self.type.dtype == "real"


@dataclass(frozen=True)
class Dot:
    """The product of a reader's vector and a vector of the token read, an input of the score; or of
    one vector with itself, which is a number of its token that kernels add up in float32."""

    name: str
    reader: str
    read: str

    @property
    def square(self) -> bool:
        """Whether it is the square of one vector."""
        return self.reader == self.read


@dataclass(frozen=True)
class Lookup:
    """A table read at an index of each pair, an input of the score: the index is the output of that
    name of the formula."""

    name: str
    table: str
    index: str


@dataclass(frozen=True)
class Bound:
    """An inequality of positions: s <= slope t + offset if `most`, else s >= slope t + offset."""

    most: bool
    slope: int
    offset: sympy.Expr


@dataclass(frozen=True)
class Choice:
    """The blocks that each reader reads, by itself: `source` is a truth value for each block, along
    its axis `blocks`, and block b has the `size` tokens from b size on. `single`: blocks are the
    tokens read, one by one."""

    source: Source
    blocks: Axis
    size: sympy.Expr
    single: bool = False

    @property
    def heads(self) -> tuple[tuple[str, str, sympy.Expr], ...]:
        """The axes of heads that choices differ along, as `Source.shares` has them."""
        return self.source.shares


@dataclass(frozen=True, eq=False)
class WeightedSum:
    """One weighted sum. `pairs` is the graph of a pair: output "score", "factor" where the weights
    of a softmax are multiplied, and "visible" where not all of the mask is in `bounds`. `slopes`
    has the derivative: from the inputs of `pairs`, "d.score" and "d.factor" to "d." and each input
    that has a gradient; None where `unlearned` says why there is none. `choice`: where a reader
    reads but blocks that it has chosen. `sink` is a source that enters the softmax's total alone.
    Without `values` the weights themselves are summed.
    `total`: the node that is the log of the sum of a softmax's weights, where a layer reads that;
    if it is `node` itself, nothing is weighted.
    `packed`: kernels take packed sequences, which read their own tokens. `ragged`: sequences
    have first positions of their own, which kernels of few readers load; `paged`: what is read of
    a sequence lies in pages, which a table names. `span`: where the spec says it.
    `copied`: a launch says whether the copy engine reads blocks of vectors (`COPIED`).
    `moved`: the vectors of a tree of spans whose gradients are [B, heads ..., T, K].
    `dropout`: the probability with which training sets a weight to 0, behind a softmax's total.
    `ranges`: bounds of which, beside the others, one tuple or another holds, as "visible" says."""

    node: int
    reader: Axis
    read: Axis
    heads: tuple[Axis, ...]
    sources: tuple[Source, ...]
    dots: tuple[Dot, ...]
    pairs: Graph
    bounds: tuple[Bound, ...]
    softmax: bool
    values: str | None
    sink: str | None
    lookups: tuple[Lookup, ...] = ()
    choice: Choice | None = None
    slopes: Graph | None = None
    unlearned: str = ""
    packed: bool = False
    ragged: bool = False
    copied: bool = False
    moved: tuple[str, ...] = ()
    ranges: tuple[tuple[Bound, ...], ...] = ()
    paged: bool = False
    span: Span | None = None
    total: int | None = None
    dropout: sympy.Expr | None = None

    @property
    def alone(self) -> bool:
        """Whether the log of the sum of weights is all that is made."""
        return self.total == self.node

    @property
    def multiplied(self) -> bool:
        """Whether the weights of its softmax are multiplied by a factor of the pair."""
        return "factor" in self.pairs.outputs

    @property
    def nodes(self) -> tuple[int, ...]:
        """The nodes of the body that are made."""
        return (self.node,) if self.total is None or self.alone else (self.node, self.total)

    def source(self, name: str) -> Source:
        """The source of that name."""
        return next(source for source in self.sources if source.name == name)

    @property
    def learned_lookups(self) -> tuple[Lookup, ...]:
        """The lookups of tables that have a gradient."""
        reached = self.slopes.outputs if self.slopes is not None else {}
        return tuple(lookup for lookup in self.lookups if cotangent(lookup.name) in reached)

    @property
    def squares(self) -> tuple[Dot, ...]:
        """The squares of vectors at which a gradient arrives."""
        reached = self.slopes.outputs if self.slopes is not None else {}
        return tuple(d for d in self.dots if d.square and cotangent(d.name) in reached)

    @property
    def learned(self) -> tuple[str, ...]:
        """The sources that have a gradient, in order."""
        if self.slopes is None:
            return ()
        reached = {primal(name) or name for name in self.slopes.outputs}
        tables = {lookup.table for lookup in self.learned_lookups}
        vectors = {n for dot in self.dots if dot.name in reached for n in (dot.reader, dot.read)}
        found = reached | vectors | tables | {self.values or "", self.sink or ""}
        return tuple(source.name for source in self.sources if source.name in found)
