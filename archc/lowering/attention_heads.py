"""A fold over the tokens read -> tile programs of few readers and many tokens.

The rows of a program are heads that read the same vectors, for each of a few readers: what is read
is loaded once for all of them. Programs share the tokens, each a part; another program puts the
sums of the parts together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import sympy

from archc.attention.listing import places
from archc.attention.row_heads import rows_of
from archc.attention.weighted_sum import Source, WeightedSum
from archc.dims import Axis
from archc.lowering.attention import NEVER, READ, READER, Part, Sweep, Tokens, clean
from archc.lowering.attention_forward import summed
from archc.lowering.formula import Known, tile
from archc.tile.compose import Composer, Tile, ceil_div, size
from archc.tile.language import Buffer, Dim, Program
from archc.tile.unread import swept

PARTS_OF = {"o": "part_o", "lse": "part_lse"}
"""What parts find of each result."""

ROOM = "ROOM"
"""How many tokens all pages have room for."""


class HeadRows(Sweep):
    """A program whose rows are readers and the heads that share what they read; `self.heads` of
    these is a tile of the rows."""

    def __init__(self, fold: WeightedSum, name: str, doc: str, held: str, warps: int, ahead: int):
        super().__init__(replace(fold, packed=False), name, doc, held, warps, ahead)
        self.packed = rows_of(fold)
        head, share = self.packed.head, self.packed.share
        whole = head is not None and self.packed.groups is None
        self.share = self.N[head.name] if head is not None and whole else self._known(share)
        self.group: Tile | None = None

    def stand_among_heads(self) -> None:
        """The grid of sequences, of heads that share nothing, and of groups of those that do."""
        alone = [head for head in self.fold.heads if head != self.packed.head]
        self.group = self.stand_among(alone, self.packed.groups)

    def stand_on_rows(self, first: Tile, count: sympy.Expr) -> None:
        """The rows from one on: the heads of a reader, then those of the next, of so many rows."""
        k, head = self.k, self.packed.head
        self.rows, self.columns = Dim("t", self.BLOCK[READER]), self._walked_dim()
        row = (first + k.iota("t", self.BLOCK[READER])).named("row")
        end = k.apply("min", first + (self.BLOCK[READER] - 1), k.lift(count - 1))
        self.mine, self.first, self.final = Tokens(row, row), first, end
        if head is not None:
            self._among_heads(head, row, end)
        self.in_mine = self.inside_of(self.mine, READER)

    def _among_heads(self, head: Axis, row: Tile, end: Tile) -> None:
        """The reader and the head of each row."""
        k = self.k
        share = k.lift(self.share, "i32")
        own = (row // share).named("t")
        self.mine = Tokens(own, own)
        self.first, self.final = (self.first // share).named("first"), end // share
        at = row % share
        at = at if self.group is None else self.group * share + at
        heads = {**self.heads, head.name: at.named(clean(head.name))}
        self.heads = {h.name: heads[h.name] for h in self.fold.heads}

    def last(self) -> Tile:
        """The last reader of the rows."""
        return self.final

    def place_of(self, source: Source, head: str, share: sympy.Expr) -> Tile:
        """Where a source is read along an axis of its own: one place where heads share it."""
        own = self.packed.head is not None and head == self.packed.head.name
        if own and self.group is not None and self.of_group(source, share):
            return self.group
        return super().place_of(source, head, share)

    def copied(self, source: Source, dim: Axis, first: Tile) -> Tile:
        """A block of vectors along a dim, read by the copy engine from a place in memory on: 0
        before the first token and behind the last."""
        places = self.index(source, Tokens(first, first))
        start = [0 if a == dim else at for a, at in zip(source.type.axes, places, strict=True)]
        dims = {"s": self.columns, f"d_{clean(dim.name)}": self.dim(dim)}
        found = self.k.load_block(self.buffers[source.name], *start, wide=False, **dims)
        return found.named(f"b_{source.name}")

    def of_group(self, source: Source, share: sympy.Expr) -> bool:
        """Whether all rows of a program read one place of a source, of which so many heads share
        one; of a group of one head what is of the reader has rows all the same."""
        chosen = self.fold.choice is not None and source == self.fold.choice.source
        return share == self.packed.share and (share != 1 or source.role == READ or chosen)


class _Part(HeadRows):
    """A program that walks one part of what its rows read. A `turned` one sums `values' p'`, for
    which, as for scores, what is read is turned around: Triton has room for it once less then. It
    reads by the copy engine, which takes no registers for addresses."""

    def __init__(self, fold: WeightedSum, name: str, turned: bool):
        doc = "The heads of a group as rows walk a part of what they read."
        super().__init__(fold, name, doc, READER, 8 if turned else 4, 3)
        (self.PARTS,), self.turned = self.k.sizes("PARTS", varying=True), turned
        self.own_pos = self.k.memory("own_pos", {"b": self.B}, "i32") if fold.ragged else None
        self.pages = self._pages() if fold.paged else None
        self.block: Tile = self.k.lift(0, "i32")  # where a block that is read begins in memory

    def _pages(self) -> Buffer:
        """The table of the pages that each sequence has, one after the other."""
        _, (pages,) = self.k.sizes(ROOM, varying=True), self.k.sizes("PAGES", varying=True)
        (self.PAGE,) = self.k.lengths("BLOCK_PAGE")
        return self.k.memory("pages", {"b": self.B, "page": pages}, "i32")

    def _size(self, source: Source, axis: Axis) -> sympy.Expr:
        if self.fold.paged and source.role == READ and axis.kind != "dim":
            return sympy.Integer(1) if axis.kind == "batch" else size(ROOM)
        return super()._size(source, axis)

    def index(
        self, source: Source, tokens: Tokens | None, part: int = 0, at_table: Tile | int = 0
    ) -> list[Tile | int]:
        """Pages of all sequences lie one after the other, as if they were of one."""
        found = super().index(source, tokens, part, at_table)
        if self.pages is not None and source.role == READ:
            kinds = [axis.kind for axis in source.type.axes]
            if "batch" in kinds:
                found[kinds.index("batch")] = 0
        return found

    def tokens(self, first: Tile, role: str) -> Tokens:
        """A block of what is read lies in one page, whose length it divides."""
        if role == READ:
            self.block = first
        if self.pages is None or role != READ:
            return super().tokens(first, role)
        k = self.k
        number = first // self.PAGE
        page = k.load(self.pages, self.b, number).named("page")
        own = k.iota("s", self.BLOCK[READ])
        inside = (first - number * self.PAGE).named("in_page")
        self.block = (page * self.PAGE + inside).named("s_begin")
        return Tokens((first + own).named("s"), self.block + own)

    def load(
        self, source: Source, tokens: Tokens | None, masks: Sequence[Tile], apart: bool = False
    ) -> Known:
        """A block of vectors that a turned program reads, 0 behind the last in memory."""
        if not self.turned or source.role != READ or source.dim is None or apart:
            return super().load(source, tokens, masks, apart)
        return self.copied(source, source.dim, self.block)

    def products(self, mine: dict[str, Known], other: dict[str, Known]) -> dict[str, Known]:
        """Products of a turned program stand in a branch, which compilers do not see to be always
        taken: of 64 rows before another product Triton gives 4 warps 16 each, and makes the same
        once more by 4 others (`dot_apart` of the runtime). The other way is a product as well, as
        Triton would take what is made of a number there before the branch in every layout."""
        if not self.turned:
            return super().products(mine, other)
        k, found = self.k, dict[str, Known]()
        for dot in (dot for dot in self.fold.dots if not dot.square):
            a, b = tile(mine[dot.reader]), tile(other[dot.read])
            with k.branch(k.lift(self.PARTS) > 0) as there:
                there.give(a.dot(b, precision=self.PRECISION))
            with k.otherwise(there) as never:
                never.give(a.dot(b, k.full(1.0, self.rows, self.columns), self.PRECISION))
            (found[dot.name],) = there.results
        return found

    def stand(self) -> None:
        """The grid: parts of what is read, sequences, groups of heads, and blocks of rows."""
        k, count = self.k, self.T * self.share
        self.part = k.program("part", self.PARTS)
        self.stand_among_heads()
        if self.own_pos is not None:
            note = "how many tokens of the sequence are before its readers, beside POS"
            self.ahead = k.load(self.own_pos, self.b).named("ahead", note)
        place = k.program("block", ceil_div(count, self.BLOCK[READER]))
        self.stand_on_rows((place * self.BLOCK[READER]).named("first_row"), count)

    def parts(self) -> Iterator[Part]:
        """The blocks of this part, of those that are walked for its rows. A turned program masks
        all of them, in one loop: of two it spills what both have."""
        k, whole = self.k, [*super().parts()]
        start, stop = whole[0].first, whole[-1].last
        whole = [Part(start, stop, True)] if self.turned and not self.fold.ranges else whole
        each = ((stop - start + (k.lift(self.PARTS) - 1)) // k.lift(self.PARTS)).named("each")
        low = (start + self.part * each).named("low")
        high = (low + each).named("high")
        for part in whole:
            first, last = k.apply("max", part.first, low), k.apply("min", part.last, high)
            yield Part(first, last, part.masked)


def turned(fold: WeightedSum, name: str = "attend_turned") -> Program:
    """What `by_parts` finds, for 64 rows of keys that are values of more than 256 numbers: their
    sums take the registers of 8 warps, and there is room for two blocks of what is read."""
    return _summed_parts(_Part(fold, name, turned=True))


def by_parts(fold: WeightedSum, name: str = "attend_part") -> Program:
    """Of each part of what is read: the sum of weighted values, of a softmax divided by that of
    the weights, and the log of the latter, which is -inf where nothing is read."""
    return _summed_parts(_Part(fold, name, turned=False))


def _summed_parts(w: _Part) -> Program:
    """The program of one part."""
    k, fold = w.k, w.fold
    values = fold.source(fold.values) if fold.values else None
    part_o, part_lse = _of_parts(w, values)
    w.stand()
    first = w.part.equals(0) if fold.sink is not None else None
    made = summed(w, values, first)
    index, acc = [w.part, w.b, w.mine.at, *w.among_heads()], made[-1]
    if part_lse is not None:
        m, total, *_ = made
        read = (total > 0.0).named("read", "whether a row read anything")
        safe = k.where(read, total, 1.0)
        acc = acc / safe
        log = k.where(read, m + k.apply("log", safe), NEVER)
        k.store(part_lse, *index, value=log, where=[w.in_mine])
    inside = [w.inside[values.dim.name]] if values and values.dim else []
    vector = [w.places[values.dim.name]] if values and values.dim else []
    if part_o is not None:
        k.store(part_o, *index, *vector, value=acc, where=[w.in_mine, *inside])
    return swept(k.done())


def _of_parts(w: _Part, values: Source | None) -> tuple[Buffer | None, Buffer | None]:
    """Memory for what parts find."""
    axes: dict[str, Any] = {"part": w.PARTS, "b": w.B, "t": w.T, **w.axes_of_heads()}
    dim = values.dim if values else None
    own = {} if dim is None else {f"d_{clean(dim.name)}": w.N[dim.name]}
    part_lse = w.k.memory(PARTS_OF["lse"], axes) if w.fold.softmax else None
    part_o = None if w.fold.alone else w.k.memory(PARTS_OF["o"], {**axes, **own})
    return part_o, part_lse


def joined(fold: WeightedSum, name: str = "attend_join") -> Program:
    """o and the log of the sum of weights of a reader and head, from those of all parts."""
    j = _Join(fold, name)
    k, whole, weights = j.k, [j.b, *j.heads], None
    if j.part_lse is not None and j.lse is not None:
        each = k.load(j.part_lse, j.part, j.b, j.t, *j.heads, where=[j.there], fill=NEVER)
        m = each.max("part").named("m")
        least = k.where(m.equals(NEVER), 0.0, m).named("least", "0 where nothing is read")
        p = k.apply("exp", each - least).named("p", "the weight of a part, less a factor of all")
        total = p.sum("part").named("total")
        read = total > 0.0
        safe = k.where(read, total, 1.0)
        weights = p / safe
        nothing = 0.0 if fold.total is None else NEVER
        log = k.where(read, least + k.apply("log", safe), nothing)
        k.store(j.lse, *whole, j.t, value=log)
    if j.o is not None and j.part_o is not None:
        parts = k.load(j.part_o, j.part, j.b, j.t, *j.heads, *j.places, where=[j.there, *j.inside])
        parts = parts if weights is None else parts * weights
        index = [j.b, j.t, *j.heads, *j.places] if j.places else [*whole, j.t]
        k.store(j.o, *index, value=parts.sum("part"), where=j.inside)
    return swept(k.done())


class _Join:
    """The memory of a program that joins parts, and where it stands: at one reader and head."""

    def __init__(self, fold: WeightedSum, name: str):
        doc = ["The sums of all parts of what a reader and head read."]
        weight = "softmax[part](part_lse) * " if fold.softmax else ""
        doc += [] if fold.alone else [f"o = sum[part]({weight}part_o)"]
        doc += ["lse = log(sum[part](exp(part_lse)))"] if fold.softmax else []
        self.k = k = Composer(name, "\n".join([*doc, *places(fold)]), 1, 1)
        (IO,), (B,) = k.dtypes("IO"), k.sizes("B")
        PARTS, T = k.sizes("PARTS", "T", varying=True)
        heads: dict[str, Any]
        heads = {f"n_{clean(h.name)}": k.sizes(f"N_{clean(h.name)}")[0] for h in fold.heads}
        (block,) = k.lengths("BLOCK_PARTS")
        own: dict[str, Any] = {}
        if fold.values and (dim := fold.source(fold.values).dim) is not None:
            own = {f"d_{clean(dim.name)}": k.sizes(f"N_{clean(dim.name)}")[0]}
        rows = {"b": B, "t": T, **heads}
        by_heads = {"b": B, **heads, "t": T}
        self.part_o = (
            None if fold.alone else k.memory(PARTS_OF["o"], {"part": PARTS, **rows, **own})
        )
        softmax = fold.softmax
        self.part_lse = k.memory(PARTS_OF["lse"], {"part": PARTS, **rows}) if softmax else None
        self.lse = k.memory("lse", by_heads) if softmax else None
        axes = {**rows, **own} if own else by_heads
        self.o = None if fold.alone else k.memory("o", axes, IO if own else "f32")
        self.b, self.t = k.program("b", B), k.program("t", T)
        self.heads = [k.program(axis[2:], length) for axis, length in heads.items()]
        self.part = k.iota("part", block)
        self.there = (self.part < PARTS).named("there")
        self.places, self.inside = list[Tile](), list[Tile]()
        for axis, length in own.items():
            place = k.iota(axis, k.lengths(f"BLOCK_{axis[2:]}")[0])
            self.places, self.inside = [place], [(place < length).named(f"in_{axis[2:]}")]
