"""A fold over the tokens read -> tile programs: what they have in common.

A program holds a block of tokens of one kind and walks blocks of the other kind: `attend` and the
gradient by readers hold readers, the gradient by tokens holds tokens read. Blocks that the mask
rules out are not walked, and those that it leaves whole are not masked.

Where sequences may be packed, a program holds tokens of one of them, and a table says where that
begins and ends; without a table it is a sequence of a batch. Places are those in the sequence, and
memory is addressed from its begin on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any

import sympy

from archc.attention.bounds import ends_of, up_to_the_reader
from archc.attention.listing import equations
from archc.attention.weighted_sum import Bound, Source, WeightedSum
from archc.dims import Axis
from archc.ir import layer as ir
from archc.ir.graph import Graph
from archc.lowering.attention_ends import within_ends
from archc.lowering.attention_walked import vectors
from archc.lowering.formula import Formula, Known, Running, tile
from archc.tile.compose import Composer, Tile, ceil_div
from archc.tile.language import Buffer, Dim

NEVER = float("-inf")
LOG2E = 1.0 / math.log(2.0)
READER, READ = "reader", "read"
BORDERS, BLOCKS = "borders", "BLOCKS"
"""The table of packed sequences, and how many programs there are along the tokens: a row each."""


def numbers_of(fold: WeightedSum) -> dict[sympy.Expr, sympy.Symbol]:
    """The numbers that only a launch knows, each with its name in the programs."""
    graphs = [fold.pairs, *([fold.slopes] if fold.slopes is not None else [])]
    nodes = [n for graph in graphs for n in graph if isinstance(n.op, ir.Constant)]
    whole = {node.op.value: node.type.dtype == "int" for node in nodes}
    whole |= {b.offset: True for own in (fold.bounds, *fold.ranges) for b in own}
    whole |= {number: True for end in ends_of(fold) for number in (end.each, end.past)}
    whole |= {} if fold.dropout is None else {fold.dropout: False}
    whole |= {share: True for source in fold.sources for _, _, share in source.shares}
    if fold.choice is not None:
        whole |= dict.fromkeys((fold.choice.size, *(n for _, _, n in fold.choice.heads)), True)
    free = [number for number in whole if number.free_symbols]
    return {number: _symbol(f"N{i}", whole[number]) for i, number in enumerate(free)}


def _symbol(name: str, whole: bool) -> sympy.Symbol:
    """The symbol of a number, which is whole or real."""
    return sympy.Symbol(name, integer=True) if whole else sympy.Symbol(name, real=True)


def clean(name: str) -> str:
    """A name of an axis as part of a name in a program."""
    return "".join(c if c.isalnum() else "_" for c in name)


@dataclass(frozen=True)
class Tokens:
    """Some tokens of a sequence: their places in it, and where they lie in memory; of a block also
    the place of its first one, and where that lies."""

    place: Tile
    at: Tile
    first: Tile | None = None
    begin: Tile | None = None


@dataclass(frozen=True)
class Part:
    """Blocks that are walked: from one index to another, and whether the mask rules pairs out."""

    first: Tile
    last: Tile
    masked: bool


class Sweep:
    """State shared by the tile programs of one attention: its buffers, its numbers and the place of
    a program in the grid.

    `held` is the kind of token that a program holds a block of."""

    def __init__(self, fold: WeightedSum, name: str, doc: str, held: str, warps: int, ahead: int):
        self.fold, self.held, self.walked = fold, held, READ if held == READER else READER
        self.looped = self.walked  # what each turn of a loop loads
        self.k = k = Composer(name, "\n".join([doc, *self.equations(fold)]), warps, ahead)
        (self.IO,), (self.PRECISION,) = k.dtypes("IO"), k.precisions("PRECISION")
        (self.B,) = k.sizes("B")
        self.T, self.S = k.sizes("T", "S", varying=True)
        self.POS, self.START = k.integers("POS", "START")
        self.N = {axis: k.sizes(f"N_{clean(axis)}")[0] for axis in self._axes()}
        self.numbers = numbers_of(fold)
        k.numbers += [*self.numbers.values()]
        vectors = list(dict.fromkeys(s.dim.name for s in fold.sources if s.dim is not None))
        names = ["T", "S", *(clean(name) for name in vectors)]
        lengths = k.lengths(*(f"BLOCK_{name}" for name in names))
        self.BLOCK = dict(zip([READER, READ, *vectors], lengths, strict=True))
        self.room = self.in_memory()
        self.buffers = {source.name: self._source(source) for source in fold.sources}
        self.table = self._table() if fold.packed else None
        self.seed = None if fold.dropout is None else k.buffer("seed", "i64", optional=True)
        self.base: Tile | None = None
        self.ahead: Tile | None = None
        self.copies = False  # whether a launch says if the copy engine reads whole blocks
        self.turned = False  # whether what is summed stands with the dim of values first
        self.common: Tile | None = None  # what a softmax does not see: it is in all of its scores
        self.left_out: Tile | None = None  # the same, where scores and their largest are without
        self.lengths = {READER: k.lift(self.T), READ: k.lift(self.S)}

    def equations(self, fold: WeightedSum) -> list[str]:
        """The formulas of the docstring."""
        return equations(fold)

    def _axes(self) -> list[str]:
        """The dims whose sizes a launch tells."""
        found = [head.name for head in self.fold.heads]
        for source in self.fold.sources:
            found += [own for own, _, _ in source.shares]
            found += [axis.name for axis in (source.dim, source.table) if axis is not None]
        found += [own for own, _, _ in self.fold.choice.heads] if self.fold.choice else []
        return list(dict.fromkeys(found))

    # --- memory ---

    def _source(self, source: Source) -> Buffer:
        """The memory of a source, in the order of its own axes."""
        own = source.type.axes
        axes: dict[str, Any] = {self._axis_name(source, a): self._size(source, a) for a in own}
        if source.summed:
            axes["part"] = sympy.Integer(2)
        dtype = self.IO if source.dim is not None else "f32" if source.real else "i32"
        return self.k.memory(source.name, axes, dtype, **self.layout(source))

    def layout(self, source: Source) -> dict[str, Any]:
        """What of the memory of a source is told at launch: the strides of any view."""
        return {"strided": True}

    def in_memory(self) -> dict[str, sympy.Expr]:
        """How many tokens of each kind there are in memory."""
        return {READER: self.T, READ: self.S}

    def _table(self) -> Buffer:
        """A row for each program along the tokens: where its sequence begins and ends, and where in
        it the program stands."""
        (count,) = self.k.sizes(BLOCKS, varying=True)
        doc = "of packed sequences: begin, end, place of a program"
        return self.k.buffer(BORDERS, "i32", doc=doc, optional=True, block=count, field=3)

    def _axis_name(self, source: Source, axis: Axis) -> str:
        if axis.kind == "batch":
            return "b"
        if axis.kind == "stream":
            return "t" if source.role == READER else "s"
        return f"{'d' if axis == source.dim else 'n'}_{clean(axis.name)}"

    def _size(self, source: Source, axis: Axis) -> sympy.Expr:
        if axis.kind == "batch":
            return self.B
        if axis.kind == "stream":
            return self.room[source.role]
        return self.N[axis.name]

    def made(self, name: str, role: str, dim: Axis | None, dtype: str = "f32") -> Buffer:
        """Memory for a result: a vector, or a number, for each token and each head."""
        heads = self.axes_of_heads()
        tokens: dict[str, Any] = {"t" if role == READER else "s": self.room[role]}
        if dim is None:
            return self.k.memory(name, {"b": self.B, **heads, **tokens}, dtype)
        own: dict[str, Any] = {f"d_{clean(dim.name)}": self.N[dim.name]}
        return self.k.memory(name, {"b": self.B, **tokens, **heads, **own}, dtype)

    def made_of(self, name: str, values: Source | None) -> Buffer | None:
        """Memory for the sum of what is weighted, or for what arrives there; None where nothing
        is."""
        if self.fold.alone:
            return None
        dim, dtype = (values.dim, self.IO) if values else (None, "f32")
        return self.made(name, READER, dim, dtype)

    def axes_of_heads(self) -> dict[str, Any]:
        """The axes of heads of what is made."""
        return {f"n_{clean(head.name)}": self.N[head.name] for head in self.fold.heads}

    def among_heads(self) -> list[Tile]:
        """Where a program, or each of its rows, stands along these."""
        return [self.heads[head.name] for head in self.fold.heads]

    # --- where a program stands ---

    def stand(self) -> None:
        """The grid: sequences, heads, and blocks of what is held. Of readers, those that may read
        most come first; of packed sequences, the table has the order."""
        k, block, total = self.k, self.BLOCK[self.held], self.T if self.held == READER else self.S
        self.stand_among_heads()
        count = ceil_div(total, block)
        place = k.program("block", self.programs(count))

        def alone() -> Tile:
            if self.held == READ:
                return place * block
            return (k.lift(count - 1) - place).named("late", "the longest rows first") * block

        self.stand_on(self.in_sequence(place, alone).named("first"))

    def programs(self, alone: sympy.Expr) -> sympy.Expr:
        """How many programs there are along the tokens, where so many are if nothing is packed."""
        return alone if self.table is None else self.table.axes[0][1]

    def in_sequence(self, program: Tile, alone: Callable[[], Tile]) -> Tile:
        """Find the sequence that a program is in, and where it stands there: as `alone` says, if
        nothing is packed."""
        k = self.k
        if self.table is None:
            return alone()
        with k.branch(k.given(self.table)) as packed:
            found = [k.load(self.table, program, field) for field in range(3)]
            begin, end, place = (
                x.named(f"own_{n}") for x, n in zip(found, ("begin", "end", "place"), strict=True)
            )
            length = (end - begin).named("own_length")
            packed.give(begin, length, length, place)
        with k.otherwise(packed) as other:
            other.give(k.lift(0, "i32"), *self.lengths.values(), alone())
        begin, readers, read, place = packed.results
        note = "where the sequence begins, how many tokens it has, and where in it this program is"
        self.base = begin.named("begin", note)
        self.lengths = {READER: readers.named("readers"), READ: read.named("tokens_read")}
        return place

    def stand_among_heads(self) -> None:
        """The grid of sequences and heads, and the places of vectors."""
        self.stand_among(self.fold.heads, None)

    def stand_among(self, heads: Sequence[Axis], groups: str | None) -> Tile | None:
        """The same of some heads, and of groups of others: the group that is at hand."""
        k = self.k
        self.b = k.program("b", self.B)
        self.heads = {h.name: k.program(clean(h.name), self.N[h.name]) for h in heads}
        group = k.program("group", self.N[groups]) if groups is not None else None
        self.stand_along_vectors()
        return group

    def stand_along_vectors(self) -> None:
        """The places of vectors."""
        k = self.k
        self.places, self.inside = dict[str, Tile](), dict[str, Tile]()
        for source in self.fold.sources:
            if source.dim is not None and source.dim.name not in self.places:
                own = clean(source.dim.name)
                i = k.iota(f"d_{own}", self.BLOCK[source.dim.name])
                self.places[source.dim.name] = i
                self.inside[source.dim.name] = (i < self.N[source.dim.name]).named(f"in_{own}")

    def stand_on(self, first: Tile) -> None:
        """The block of tokens that is held, from its first one on."""
        block, letter = self.BLOCK[self.held], "t" if self.held == READER else "s"
        self.first = first
        self.rows, self.columns = Dim(letter, block), self._walked_dim()
        self.mine = self.tokens(first, self.held)
        self.in_mine = self.inside_of(self.mine, self.held)

    def tokens(self, first: Tile, role: str) -> Tokens:
        """A block of tokens, from the place of its first one on."""
        letter = "t" if role == READER else "s"
        own, begin = self.k.iota(letter, self.BLOCK[role]), self.begin_of(role)
        place = (first + own).named(letter)
        if begin is None:
            return Tokens(place, place, first, first)
        at = (begin + first).named(f"{letter}_begin")
        return Tokens(place, at + own, first, at)

    def begin_of(self, role: str) -> Tile | None:
        """Where tokens of a kind begin in memory; None if at 0."""
        return self.base

    def inside_of(self, tokens: Tokens, role: str) -> Tile:
        """Whether tokens are before the end of their sequence."""
        return (tokens.place < self.lengths[role]).named("in_t" if role == READER else "in_s")

    def last(self) -> Tile:
        """The place of the last of the tokens that are held."""
        end = self.lengths[self.held] - 1
        return self.k.apply("min", self.first + (self.BLOCK[self.held] - 1), end)

    def _walked_dim(self) -> Dim:
        return Dim("s" if self.walked == READ else "t", self.BLOCK[self.walked])

    def dim(self, axis: Axis) -> Dim:
        """The dim of tiles of vectors."""
        return Dim(f"d_{clean(axis.name)}", self.BLOCK[axis.name])

    def index(
        self, source: Source, tokens: Tokens | None, part: int = 0, at_table: Tile | int = 0
    ) -> list[Tile | int]:
        """The index of a source along each axis of its memory."""
        found: list[Tile | int] = []
        shares = {own: (head, share) for own, head, share in source.shares}
        for axis in source.type.axes:
            if axis.kind == "batch":
                found.append(self.b)
            elif axis.kind == "stream":
                assert tokens is not None
                found.append(tokens.at)
            elif axis == source.dim:
                found.append(self.places[axis.name])
            elif axis == source.table:
                found.append(at_table)
            else:
                found.append(self.place_of(source, *shares[axis.name]))
        return [*found, part] if source.summed else found

    def place_of(self, source: Source, head: str, share: sympy.Expr) -> Tile:
        """Where a source is read along an axis of its own, of which so many heads share a place."""
        at = self.heads[head]
        return at if share == 1 else at // self._known(share)

    def _known(self, number: sympy.Expr) -> sympy.Expr:
        return self.numbers.get(number, number)

    def load(
        self, source: Source, tokens: Tokens | None, masks: Sequence[Tile], apart: bool = False
    ) -> Known:
        """A source at some tokens: a vector in the dtype of the data, else a number, or a truth
        value."""
        buffer, where = self.buffers[source.name], [*masks]
        if source.dim is not None:
            if tokens is not None and not apart:

                def at(place: Tile) -> list[Tile | int]:
                    return self.index(source, Tokens(place, place))

                found = vectors(self, buffer, at, tokens, source.dim, masks)
                return found.named(f"b_{source.name}")
            where.append(self.inside[source.dim.name])
        if not source.summed:
            index = self.index(source, tokens)
            found = self.k.load(buffer, *index, where=where, wide=False, apart=apart)
            found = found.named(f"b_{source.name}")
            return found > 0 if source.type.dtype == "bool" else found
        high, low = (
            self.k.load(buffer, *self.index(source, tokens, part), where=where) for part in (0, 1)
        )
        return Running(high, low)

    def stand_at(self) -> None:
        """Where running sums are counted from in blocks that the mask leaves whole: what is held
        and what is walked are then on two sides, and their difference swallows no digits."""
        last = self.first if self.held == READER else self.last()
        if self.held == READ and self.base is not None:
            last = self.k.apply("max", last, 0)
        begin = self.begin_of(self.held)
        one = Tokens(last, last if begin is None else begin + last)
        self.anchors = {
            source.node: self.load(source, one, ())
            for source in self.fold.sources if source.summed and source.role == self.held
        }  # fmt: skip

    def sided(self, inputs: dict[str, Known], masked: bool) -> dict[str, Known]:
        """Inputs of a block of pairs, with running sums as one number where that is enough."""
        if masked or not up_to_the_reader(self.fold.bounds):
            return inputs
        found = dict(inputs)
        for source in self.fold.sources:
            x, anchor = inputs.get(source.name), self.anchors.get(source.node)
            if isinstance(x, Running) and isinstance(anchor, Running):
                found[source.name] = (x.high - anchor.high) + (x.low - anchor.low)
        return found

    def own_sums(self) -> list[str]:
        """The running sums of the tokens held: finite numbers."""
        return [s.name for s in self.fold.sources if s.summed and s.role == self.held]

    def loaded(self, role: str, tokens: Tokens | None, masks: Sequence[Tile]) -> dict[str, Known]:
        """Every source of a kind, by name, and the squares of such vectors: those that turns load
        are loaded once more, as Triton has room for one block less of what is more than a factor
        of products (`products-and-more` of the table of quirks)."""
        own = [s for s in self.fold.sources if s.role == role and s.table is None]
        found = {source.name: self.load(source, tokens, masks) for source in own}
        for dot in self.fold.dots:
            if dot.square and dot.reader in found:
                source = self.fold.source(dot.reader)
                assert source.dim is not None
                x, dim = tile(found[dot.reader]), source.dim
                if role == self.looped:
                    x = tile(self.load(source, tokens, masks, apart=True))
                x = x.to("f32")
                found[dot.name] = (x * x).sum(self.dim(dim).name).named(dot.name)
        return found

    def result_index(self, dim: Axis | None) -> list[Tile]:
        """Indices of the results of a program's block of tokens."""
        if dim is None:
            return [self.b, *self.among_heads(), self.mine.at]
        return [self.b, self.mine.at, *self.among_heads(), self.places[dim.name]]

    def keep(self, buffer: Buffer, dim: Axis | None, value: Tile) -> None:
        """Store a result of the tokens held: no two programs have one token."""
        where = [self.in_mine, *([self.inside[dim.name]] if dim is not None else [])]
        index, alone = self.result_index(dim), self.base is not None
        self.k.store(buffer, *index, value=value, where=where, exclusive=alone)

    # --- formulas ---

    def position(self, role: str, tokens: Tile) -> Tile:
        """Positions in the whole sequence of tokens of a launch."""
        found = tokens + self.k.lift(self.POS if role == READER else self.START)
        return found if role == READ or self.ahead is None else found + self.ahead

    def formula(self, graph: Graph, inputs: dict[str, Known], walked: Tokens | None) -> Formula:
        """A formula of pairs; without the tokens that are walked, what can be made before."""
        positions = {name: self.heads[name] for name in self.heads}
        known = {self.held: self.mine}
        known |= {} if walked is None else {self.walked: walked}
        names = {READER: self.fold.reader.name, READ: self.fold.read.name}
        positions |= {names[role]: self.position(role, at.place) for role, at in known.items()}
        pairs = (self.rows, self.columns)
        return Formula(self.k, graph, inputs, positions, self.numbers, pairs)

    def of_first(self, x: Tile) -> Tile:
        """A number of each token held, at the first place of a block that is walked, and 0 at the
        others."""
        k = self.k
        first = k.iota(self.columns.name, self.columns.length).equals(0)
        return k.where(first, x.over(self.rows, self.columns), 0.0)

    def products(self, mine: dict[str, Known], other: dict[str, Known]) -> dict[str, Known]:
        """The products of a block of pairs, held tokens first."""
        found: dict[str, Known] = {}
        for dot in (dot for dot in self.fold.dots if not dot.square):
            held = dot.reader if self.held == READER else dot.read
            walked = dot.read if self.held == READER else dot.reader
            a, b = tile(mine[held]), tile(other[walked])
            found[dot.name] = a.dot(b, precision=self.PRECISION)
        return found

    def edges(self) -> None:
        """The last and the first token that each token held goes with, as the mask has it: one
        comparison of a pair for each."""
        k, end = self.k, self.lengths[self.walked]
        origin, other = (self.POS, self.START) if self.held == READER else (self.START, self.POS)
        self.latest, self.earliest = end - 1, None
        for bound in self._bounds():
            limit = self._limit(bound, self.mine.place, origin, other)
            if bound.most:
                self.latest = k.apply("min", limit, self.latest).named("latest")
            elif self.earliest is None:
                self.earliest = limit.named("earliest")
            else:
                self.earliest = k.apply("max", self.earliest, limit).named("earliest")

    def visible(self, walked: Tokens, formula: Formula, masked: bool) -> Tile | None:
        """The mask of the pairs of a block; None if all pairs are read."""
        found: list[Tile] = []
        if masked:
            found.append(self._beside("ge", self.latest, walked.place))
            if self.earliest is not None:
                found.append(self._beside("le", self.earliest, walked.place))
            if self.held == READ:
                own = self.position(READ, self.mine.place)
                at = self.position(READER, walked.place)
                others = [bound for bound in self.fold.bounds if bound.slope != 1]
                found += [self._holds(bound, at, own) for bound in others]
        if "visible" in self.fold.pairs.outputs:
            found.append(formula.value(self.fold.pairs.outputs["visible"]))
        both: Tile | None = None
        for each in sorted(found, key=lambda x: -len(x.dims)):
            both = each if both is None else both & each
        return both

    def _beside(self, fn: str, held: Tile, walked: Tile) -> Tile:
        """A comparison of a number of each token held, or of all, with the tokens walked."""
        held = held.over(self.rows, self.columns) if held.dims else held
        return self.k.apply(fn, held, walked)

    def _holds(self, bound: Bound, t: Tile, s: Tile) -> Tile:
        """Whether a bound holds of readers that are walked."""
        limit = t * bound.slope + self.k.lift(self._known(bound.offset), "i32")
        return self._beside("le" if bound.most else "ge", s, limit)

    # --- which blocks are walked ---

    def parts(self) -> Iterator[Part]:
        """The blocks that a program walks: those at the edges of the mask, and those that it leaves
        whole."""
        if self.fold.ranges:
            yield from self._union()
            return
        k, block = self.k, self.BLOCK[self.walked]
        low, whole_low, whole_high, high = within_ends(self, *self._range(self._bounds()))
        start = (low // block).named("start")
        stop = ((high + (block - 1)) // block).named("stop")
        if any(bound.slope != 1 for bound in self.fold.bounds) and self.held == READ:
            yield Part(start, stop, True)
            return
        first = start
        if any(not bound.most for bound in self._bounds()):
            first = k.apply("min", k.apply("max", (whole_low + (block - 1)) // block, start), stop)
            yield Part(start, first.named("whole_start"), True)
        last = (whole_high // block).named("whole_stop")
        yield Part(first, last, False)
        yield Part(k.apply("max", first, last), stop, True)

    def _union(self) -> Iterator[Part]:
        """The blocks of one range or another, in order and each once: again and again those from
        the first one on that is left, as far as a range goes that has it."""
        k, block = self.k, self.BLOCK[self.walked]
        spans: list[tuple[Tile, Tile]] = []
        for own in self.fold.ranges:
            low, _, _, high = self._range(self._bounds((*self.fold.bounds, *own)))
            for bound in own:
                if bound.slope == 0 and self.held == READ:
                    high = k.where(self._is_read(bound), high, 0)
            spans.append((low // block, k.where(high > low, (high + (block - 1)) // block, 0)))
        far = self._most([stop for _, stop in spans])
        place = k.lift(0, "i32")
        for _ in spans:
            ahead = [(k.apply("max", start, place), stop) for start, stop in spans]
            first = far
            for start, stop in ahead:
                first = k.apply("min", first, k.where(stop > start, start, far))
            here = [k.where(start.equals(first), stop, 0) for start, stop in ahead]
            place = k.apply("max", self._most(here), first).named("stop")
            yield Part(first.named("start"), place, True)

    def _most(self, numbers: Sequence[Tile]) -> Tile:
        """The largest of some numbers."""
        return reduce(partial(self.k.apply, "max"), numbers)

    def _is_read(self, bound: Bound) -> Tile:
        """Whether a bound by no reader holds of some token read that is held."""
        at = self.position(READ, self.first if bound.most else self.last())
        limit = self.k.lift(self._known(bound.offset), "i32")
        return at <= limit if bound.most else at >= limit

    def _bounds(self, given: Sequence[Bound] | None = None) -> list[Bound]:
        """Bounds on what is walked by what is held: those `given`, or of all that is read."""
        given = self.fold.bounds if given is None else given
        if self.held == READER:
            return [*given]
        return [Bound(not b.most, 1, -b.offset) for b in given if b.slope == 1]

    def _range(self, bounds: Sequence[Bound]) -> tuple[Tile, Tile, Tile, Tile]:
        """Where what is walked begins and ends for some token that is held, and for all of them:
        low, low of all, high of all, high; all are places from 0 to the number of tokens."""
        k, walked = self.k, self.lengths[self.walked]
        origin, other = (self.POS, self.START) if self.held == READER else (self.START, self.POS)
        end, nothing = self.last(), k.lift(0, "i32")
        low, whole_low, whole_high, high = nothing, nothing, walked, walked
        for bound in bounds:
            at_first, at_end = (
                self._limit(bound, place, origin, other) for place in (self.first, end)
            )
            early, late = (at_first, at_end) if bound.slope >= 0 else (at_end, at_first)
            if bound.most:
                high = k.apply("min", high, late + 1)
                whole_high = k.apply("min", whole_high, early + 1)
            else:
                low, whole_low = k.apply("max", low, early), k.apply("max", whole_low, late)
        high, whole_high = (k.apply("max", each, 0) for each in (high, whole_high))
        return low, whole_low, whole_high, high

    def _limit(self, bound: Bound, place: Tile, origin: sympy.Symbol, other: sympy.Symbol) -> Tile:
        """The place up to which, or from which on, a bound lets a token see."""
        offset = bound.offset
        known = -self._known(-offset) if -offset in self.numbers else self._known(offset)
        shift = self.k.lift(bound.slope * origin - other + known, "i32")
        found = (place if bound.slope == 1 else place * bound.slope) + shift
        return found if self.ahead is None else found + self.ahead * bound.slope

    def walk(
        self,
        carried: Sequence[Tile],
        turn: Callable[[Tokens, bool, tuple[Tile, ...]], Sequence[Tile]],
    ) -> list[Tile]:
        """All blocks, one after the other: `turn` makes of the tokens of a block, whether they are
        masked, and what is carried, what the next one gets."""
        found = [*carried]
        for part in self.parts():
            self.left_out = None if part.masked else self.common
            if self.left_out is not None:
                found[0] = (found[0] - self.left_out).named("m")
            with self.k.loop(part.first, part.last, *found) as loop:
                tokens = self.tokens(loop.index * self.BLOCK[self.walked], self.walked)
                loop.next(*turn(tokens, part.masked, loop.carried))
            found = [*loop.results]
            if self.left_out is not None:
                found[0] = (found[0] + self.left_out).named("m")
        self.left_out = None
        return found
