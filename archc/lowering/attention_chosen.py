"""A fold over the blocks that each reader has chosen -> tile programs.

Of single tokens a program has one reader, and as rows the heads that share its choice: it walks
the list, so that what is read is loaded once for all of them. Of blocks it has a few readers, one
beside the other, and walks what any of them has chosen, each block once. The gradient of what is of
the token read walks the other way: for each block the readers that chose it. Lists of what each
reader has chosen are made by the caller.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import sympy

from archc.attention.weighted_sum import Choice, Source, WeightedSum
from archc.ir.value_names import cotangent
from archc.lowering.attention import READ, READER, Tokens, clean
from archc.lowering.attention_forward import of_values
from archc.lowering.attention_gradient import Gradient, gradient_of_readers, gradient_of_tokens
from archc.lowering.attention_heads import HeadRows
from archc.lowering.formula import Formula, Known
from archc.tile.compose import Composer, Tile, ceil_div
from archc.tile.language import Buffer, Dim, Program

Turn = Callable[[Tokens, bool, tuple[Tile, ...]], Sequence[Tile]]


class Choosing(HeadRows):
    """The common part of programs of readers and of tokens read."""

    def __init__(self, fold: WeightedSum, name: str, doc: str, held: str, warps: int, ahead: int):
        super().__init__(fold, name, doc, held, warps, ahead)
        assert fold.choice is not None
        self.choice: Choice = fold.choice
        self.size = self._known(fold.choice.size)
        self._fix(self.size, self.share)

    def _fix(self, *sizes: sympy.Expr) -> None:
        """Let machine code be made for numbers that places in loops are divided by."""
        own = {symbol for size in sizes for symbol in size.free_symbols}
        for symbol in [each for each in self.k.numbers if each in own]:
            self.k.numbers.remove(symbol)
            self.k.fixed(symbol)

    def inside_of(self, tokens: Tokens, role: str) -> Tile:
        """Whether there are such tokens: what stands in a list is no place by itself."""
        return (tokens.place >= 0) & super().inside_of(tokens, role)

    def axes_of_choices(self) -> dict[str, sympy.Expr]:
        """The axes of heads along which choices differ."""
        return {f"n_{clean(own)}": self.N[own] for own, _, _ in self.choice.heads}

    def among_choices(self) -> list[Tile]:
        """Where a program stands along these."""
        return [self.place_of(self.choice.source, at, n) for _, at, n in self.choice.heads]

    def of_rows(self, source: Source) -> bool:
        """Whether a source has a value for each of the heads that are rows."""
        assert self.packed.head is not None
        own = [n for _, at, n in source.shares if at == self.packed.head.name]
        return any(self.group is None or not self.of_group(source, n) for n in own)


class Listed(Choosing):
    """A program that is told what each reader has chosen."""

    def __init__(self, fold: WeightedSum, name: str, doc: str, held: str, warps: int, ahead: int):
        super().__init__(fold, name, doc, held, warps, ahead)
        (self.MOST,) = self.k.sizes("MOST")
        self.lists()

    def lists(self) -> None:
        """Memory for the lists."""
        axes: dict[str, Any] = {"b": self.B, "t": self.T, **self.axes_of_choices()}
        self.listed = self.k.memory("listed", {**axes, "most": self.MOST}, "i32")
        self.count = self.k.memory("count", axes, "i32")

    def tokens_at(self, where: list[Tile], entry: Tile, chosen: Tile) -> Tile:
        """The tokens at some places of a reader's list, of which so many are filled; behind them,
        the token after the last."""
        k = self.k
        there = ((entry < chosen) & (entry < self.MOST)).named("there")
        s = k.load(self.listed, *where, entry, where=[there])
        return k.where(there & (s < self.S), s, k.lift(self.S)).named("s")


class OneReader(Listed):
    """A program of one reader: its rows are the heads that share what it has chosen."""

    def stand(self) -> None:
        """The grid: sequences, heads that share nothing, groups of those that do, readers, and
        blocks of their rows."""
        k = self.k
        self.stand_among_heads()
        self.first = self.final = self.reader()
        self.mine = Tokens(self.first, self.first)
        self.rows, self.columns = Dim("t", self.BLOCK[READER]), self._walked_dim()
        self.at_rows = k.program("rows", ceil_div(self.share, self.BLOCK[READER]))
        first_row = self.at_rows * self.BLOCK[READER]
        self.row = (first_row + k.iota("t", self.BLOCK[READER])).named("row")
        share, head = k.lift(self.share, "i32"), self.packed.head
        assert head is not None
        first = k.lift(0, "i32") if self.group is None else self.group * share
        at = (self.row if self.group is None else first + self.row).named(clean(head.name))
        self.in_mine = ((self.row < share) & (at < first + share)).named("in_rows")
        heads = {**self.heads, head.name: at}
        self.heads = {h.name: heads[h.name] for h in self.fold.heads}

    def reader(self) -> Tile:
        """The reader of a program."""
        return self.k.program("t", self.T)

    def axes_of_heads(self) -> dict[str, Any]:
        """The axes of heads of what is made: those that are rows are an axis of a group."""
        found: dict[str, Any] = {}
        for head in self.fold.heads:
            if head != self.packed.head:
                found[f"n_{clean(head.name)}"] = self.N[head.name]
                continue
            if self.packed.groups is not None:
                found["n_group"] = self.N[self.packed.groups]
            found["n_row"] = self.share
        return found

    def among_heads(self) -> list[Tile]:
        """Where a row stands along these."""
        found = []
        for head in self.fold.heads:
            own = [self.row] if self.group is None else [self.group, self.row]
            found += own if head == self.packed.head else [self.heads[head.name]]
        return found

    def load(
        self, source: Source, tokens: Tokens | None, masks: Sequence[Tile], apart: bool = False
    ) -> Known:
        """A source at some tokens; of the reader, only the rows that there are."""
        if source.role != READ:
            masks = [self.in_mine] if self.of_rows(source) else []
        return super().load(source, tokens, masks, apart)

    def walk(self, carried: Sequence[Tile], turn: Turn) -> list[Tile]:
        """The walk over the tokens that the reader has chosen, in order."""
        k, block = self.k, self.BLOCK[READ]
        where = [self.b, self.mine.at, *self.among_choices()]
        chosen = k.load(self.count, *where).named("chosen")
        with k.loop(0, (chosen + (block - 1)) // block, *carried) as loop:
            self.entry = (loop.index * block + k.iota("s", block)).named("entry")
            s = self.tokens_at(where, self.entry, chosen)
            loop.next(*turn(Tokens(s, s), True, loop.carried))
        return [*loop.results]


class Neighbours(OneReader):
    """A program of so many readers, one beside the other: its rows are the heads of each that share
    what it has chosen, and it walks what any of them has chosen."""

    def lists(self) -> None:
        """Memory for the blocks that any of some readers has chosen, and who has."""
        (self.BESIDE,) = self.k.sizes("BESIDE")
        many = ceil_div(self.T, self.BESIDE)
        axes: dict[str, Any] = {"b": self.B, "beside": many, **self.axes_of_choices()}
        entries = {**axes, "most": self.BESIDE * self.MOST}
        self.union, self.who = (self.k.memory(n, entries, "i32") for n in ("union", "who"))
        self.many = self.k.memory("many", axes, "i32")

    def stand(self) -> None:
        """The grid: sequences, heads that share nothing, groups of those that do, readers beside
        each other, and blocks of their rows."""
        k, block, head = self.k, self.BLOCK[READER], self.packed.head
        assert head is not None
        self.stand_among_heads()
        self.beside = k.program("beside", ceil_div(self.T, self.BESIDE))
        self.rows, self.columns = Dim("t", block), self._walked_dim()
        first_row = k.program("rows", ceil_div(self.BESIDE * self.share, block)) * block
        each = (first_row + k.iota("t", block)).named("each", "head of a reader")
        share, beside = k.lift(self.share, "i32"), k.lift(self.BESIDE, "i32")
        self.whose, self.row = (each // share).named("whose"), (each % share).named("row")
        self.first = (self.beside * beside).named("first")
        self.final = k.apply("min", self.first + (beside - 1), k.lift(self.T) - 1)
        t = (self.first + self.whose).named("t")
        self.mine = Tokens(t, t.to("i64"))
        self.in_mine = ((self.whose < beside) & (t < self.T)).named("in_t")
        at = self.row if self.group is None else self.group * share + self.row
        heads = {**self.heads, head.name: at.named(clean(head.name))}
        self.heads = {h.name: heads[h.name] for h in self.fold.heads}

    def load(
        self, source: Source, tokens: Tokens | None, masks: Sequence[Tile], apart: bool = False
    ) -> Known:
        """A source at some tokens; of readers, at each row that there is. Vectors of what is read
        are a block in memory."""
        if source.role == READER:
            return HeadRows.load(self, source, tokens, [self.in_mine], apart)
        if source.role == READ and source.dim is not None and not apart:
            return self.copied(source, source.dim, self.block)
        return super().load(source, tokens, masks, apart)

    def inside_of(self, tokens: Tokens, role: str) -> Tile:
        """Whether there are such tokens in memory; those behind the end of a block are not read."""
        if role != READ:
            return super().inside_of(tokens, role)
        return ((tokens.at >= 0) & (tokens.at < self.S)).named("in_s")

    def edges(self) -> None:
        """The last token that each row may read, of those in blocks that its reader has chosen."""
        super().edges()
        self.own_latest, self.own_earliest = self.latest.over(self.rows), self.earliest
        place = self.k.apply("exp2", -1.0 - self.whose.to("f32"))
        self.place = place.named("place", "of the bit of each reader: 1/2, 1/4, ...")

    def visible(self, walked: Tokens, formula: Formula, masked: bool) -> Tile | None:
        """The mask of the pairs of a block, by places in it."""
        return super().visible(replace(walked, place=self.inner), formula, masked)

    def walk(self, carried: Sequence[Tile], turn: Turn) -> list[Tile]:
        """The walk over the blocks that any reader has chosen, each in as many turns as it
        needs."""
        k, block, size = self.k, self.BLOCK[READ], self.k.lift(self.size, "i32")
        where = [self.b, self.beside, *self.among_choices()]
        many = k.load(self.many, *where).named("many")
        turns = ((size + (block - 1)) // block).named("turns", "of one block")

        def listed(entry: Tile) -> list[Tile]:
            there = (entry < many) & (entry < self.BESIDE * self.MOST)
            return [k.load(x, *where, entry, where=[there]) for x in (self.union, self.who)]

        first = listed(k.lift(0, "i32"))
        with k.loop(0, many * turns, *carried, *first) as loop:
            *before, at, who = loop.carried
            following = listed((loop.index + 1) // turns)  # a turn ahead of what they address
            share = (who.to("f32") + 0.5) * self.place
            chosen = (share - k.apply("floor", share) >= 0.5).named("chosen")
            begin, self.inner = (loop.index % turns) * block, k.iota("s", block)
            self.block = (at * size - k.lift(self.START) + begin).named("start")
            left = k.apply("min", self.own_latest - self.block, size - 1 - begin)
            self.latest = k.where(chosen, left, -1).named("left", "the last that a row reads of it")
            if self.own_earliest is not None:
                self.earliest = self.own_earliest - self.block
            s = (self.block + self.inner).named("s")
            loop.next(*turn(Tokens(s, s), True, tuple(before)), *following)
        return [*loop.results[: len(carried)]]


class _Lists:
    """The memory of a program that unites lists, and where it stands: at some readers beside each
    other. `heads`: the axes along which choices differ."""

    def __init__(self, heads: Sequence[str], name: str, lines: Sequence[str]):
        dims = " ".join(["b", "beside", *(axis[2:] for axis in heads)])
        doc = (
            "What any of some readers has chosen, and who has: a bit for each.",
            f"union, who = of listed [{dims.replace('beside', 't')} MOST]  [{dims} BESIDE * MOST]",
            f"many = how many are in union  [{dims}]",
        )
        self.k = k = Composer(name, "\n".join([*doc, *lines]), 1, 1)
        (B,), (self.T,) = k.sizes("B"), k.sizes("T", varying=True)
        self.MOST, self.BESIDE = k.sizes("MOST", "BESIDE")
        own: dict[str, Any] = {axis: k.sizes(f"N_{axis[2:]}")[0] for axis in heads}
        axes: dict[str, Any] = {"b": B, "t": self.T, **own}
        self.listed = k.memory("listed", {**axes, "most": self.MOST}, "i32")
        axes = {"b": B, "beside": ceil_div(self.T, self.BESIDE), **own}
        entries = {**axes, "most": self.BESIDE * self.MOST}
        self.union, self.who = (k.memory(name, entries, "i32") for name in ("union", "who"))
        self.many = k.memory("many", axes, "i32")
        self.b, self.beside = k.program("b", B), k.program("beside", axes["beside"])
        self.heads = [k.program(axis[2:], length) for axis, length in own.items()]
        self.first = self.beside * k.lift(self.BESIDE, "i32")

    def chosen_at(self, own: Tile, place: Tile) -> Tile:
        """What stands at a place of a reader's list, -1 where nothing."""
        t = self.first + own
        where = [(own < self.BESIDE) & (t < self.T)]
        return self.k.load(self.listed, self.b, t, *self.heads, place, where=where, fill=-1)


def unions(heads: Sequence[str], name: str = "attend_unions", lines: Sequence[str] = ()) -> Program:
    """What any of some readers beside each other has chosen, each once, in the order of readers:
    union[b, beside, ...], who[b, beside, ...] has the bit of each reader, many[b, beside, ...] how
    many there are. `heads`: the axes along which choices differ; `lines` of the spec choose."""
    w = _Lists(heads, name, lines)
    k, (block,) = w.k, w.k.lengths("BLOCK_E")
    entry, most = k.iota("e", block), k.lift(w.MOST, "i32")
    mine = w.chosen_at(entry // most, entry % most).named("mine")
    zero, one = k.full(0, *entry.dims, dtype="i32"), k.lift(1, "i32")
    with k.loop(0, w.BESIDE, zero, zero, one, index="own") as readers:
        own, (bits, earlier, bit) = readers.index, readers.carried
        with k.loop(0, w.MOST, bits, earlier, index="place") as places:
            same = (mine >= 0) & mine.equals(w.chosen_at(own, places.index))
            bits = places.carried[0] + k.where(same, bit, 0)
            before = same & (own * most + places.index < entry)
            places.next(bits, places.carried[1] + k.where(before, one, 0))
        readers.next(*places.results, bit * 2)
    bits, earlier, _ = readers.results
    new = ((mine >= 0) & earlier.equals(0)).named("new", "the first of equals")
    each = k.where(new, one, 0)
    place = each.scan("sum", "e") - 1
    index = [w.b, w.beside, *w.heads]
    where = [new, place >= 0, place < w.BESIDE * w.MOST]
    k.store(w.union, *index, place, value=mine, where=where, exclusive=True)
    k.store(w.who, *index, place, value=bits, where=where, exclusive=True)
    k.store(w.many, *index, value=each.sum("e"))
    return k.done()


def by_choice(fold: WeightedSum, name: str = "attend_chosen") -> Program:
    """o, and of a softmax the log of the sum of weights of each reader and head."""
    assert fold.choice is not None
    doc = "The heads of a group as rows walk what their reader has chosen."
    make = OneReader if fold.choice.single else Neighbours
    return of_values(make(fold, name, doc, READER, 4, 3), fold)


class _GradientOfReaders(Gradient, Neighbours):
    """The gradient of what is of readers."""


def of_choosers(fold: WeightedSum, name: str = "attend_chosen_readers") -> Program:
    """The gradients of what is of the reader, or of the head; and delta, for the other program."""
    doc = "Gradients of readers: their heads walk the blocks that any of them has chosen."
    return gradient_of_readers(_GradientOfReaders(fold, name, doc, READER, 4, 3))


class _OneBlock(Choosing):
    """A program of one block of tokens read, and of a part of the readers that have chosen it."""

    def __init__(self, fold: WeightedSum, name: str, doc: str, held: str, warps: int, ahead: int):
        super().__init__(fold, name, doc, held, warps, ahead)
        k = self.k
        self.PARTS, self.LISTS, self.ENTRIES = k.sizes("PARTS", "LISTS", "ENTRIES")
        axes: dict[str, Any] = {"b": self.B, **self.axes_of_choices()}
        self.order = k.memory("order", {**axes, "entry": self.ENTRIES}, "i32")
        self.begins = k.memory("begins", {**axes, "blocks": self.LISTS + 1}, "i32")


class _GradientOfBlock(Gradient, _OneBlock):
    """The gradient of what is of a block of tokens read: its readers are walked, with the heads of
    each."""

    def begin(self) -> None:
        """Make what is needed before the loop."""
        self.stand()
        self.anchors = {}
        self.fixed: dict[str, Known] = {}
        self.own = self.loaded(READ, self.mine, [self.in_mine])
        self.edges()

    def _result(self, source: Source) -> Buffer:
        """Memory for a gradient: of each part and group of heads, by block and token in it."""
        axes: dict[str, Any] = {"part": self.PARTS, "b": self.B, "block": self.LISTS}
        axes |= {"inner": self.size, **{f"n_{clean(n)}": self.N[n] for n in self._own_heads()}}
        if source.dim is not None:
            axes[f"d_{clean(source.dim.name)}"] = self.N[source.dim.name]
        return self.k.memory(cotangent(source.name).replace(".", "_"), axes)

    def _own_heads(self) -> dict[str, Tile | None]:
        """The axes of heads that programs differ along, and where this one stands."""
        found: dict[str, Tile | None] = {}
        if self.packed.groups is not None:
            found[self.packed.groups] = self.group
        standing = getattr(self, "heads", {})
        others = [h for h in self.fold.heads if h != self.packed.head]
        return {**found, **{h.name: standing.get(h.name) for h in others}}

    def stand(self) -> None:
        """The grid: sequences, groups of heads, parts of the readers, and blocks of tokens."""
        k, block = self.k, self.BLOCK[READ]
        self.stand_among_heads()
        self.part = k.program("part", self.PARTS)
        place = k.program("block", self.LISTS * ceil_div(self.size, block))
        size = k.lift(self.size, "i32")
        many = (size + (block - 1)) // block
        self.at_block = (place // many).named("at_block")
        self.inner = ((place % many) * block + k.iota("s", block)).named("inner")
        self.in_inner = (self.inner < size).named("in_block")
        self.rows, self.columns = Dim("s", block), self._walked_dim()
        s = (self.at_block * size + self.inner - k.lift(self.START)).named("s")
        self.mine = Tokens(s, s)
        self.in_mine = self.in_inner & self.inside_of(self.mine, READ)
        self.first = self.final = self.at_block * size

    def walk(self, carried: Sequence[Tile], turn: Turn) -> list[Tile]:
        """The readers that have chosen the block, and the heads of each."""
        k, block, head = self.k, self.BLOCK[READER], self.packed.head
        assert head is not None
        share, where = k.lift(self.share, "i32"), [self.b, *self.among_choices()]
        start, end = (k.load(self.begins, *where, self.at_block + i) for i in (0, 1))
        total = ((end - start) * share).named("total", "readers, a row for each head")
        each = ((total + (block - 1)) // block + (k.lift(self.PARTS) - 1)) // k.lift(self.PARTS)
        low, others = self.part * each, self.heads
        high = k.apply("min", low + each, (total + (block - 1)) // block)
        with k.loop(low, high, *carried) as loop:
            j = loop.index * block + k.iota("t", block)
            inside = j < total
            t = k.load(self.order, *where, start + j // share, where=[inside])
            t = k.where(inside & (t < self.T), t, k.lift(self.T)).named("t")
            at = j % share if self.group is None else self.group * share + j % share
            self.heads = {**others, head.name: at.named(clean(head.name))}
            self.fixed = self.loaded("same", None, ())
            loop.next(*turn(Tokens(t, t.to("i64")), True, loop.carried))
        self.heads = others
        return [*loop.results]

    def leave(self, made: Sequence[Tile]) -> None:
        """Store every gradient."""
        heads = [place for place in self._own_heads().values() if place is not None]
        for source, total in zip(self.wanted, made, strict=True):
            inside = [self.inside[source.dim.name]] if source.dim is not None else []
            vector = [self.places[source.dim.name]] if source.dim is not None else []
            index = [self.part, self.b, self.at_block, self.inner, *heads, *vector]
            where = [self.in_inner, *inside]
            self.k.store(self.results[source.name], *index, value=total, where=where)


def of_chosen(fold: WeightedSum, name: str = "attend_chosen_tokens") -> Program:
    """The gradients of what is of the token read, of each part of its readers."""
    doc = "Gradients of a block of tokens: it walks the readers that have chosen it."
    return gradient_of_tokens(_GradientOfBlock(fold, name, doc, READ, 8, 2))
