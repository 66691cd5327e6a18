"""A fold over the blocks that each reader has chosen -> tile programs.

A program has one reader, and as rows the heads that share its choice: it walks the list of the
blocks, so that what is read is loaded once for all of them. The gradient of what is of the token
read walks the other way: for each block the readers that chose it. Lists are made by the caller.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import sympy

from archc.attention.weighted_sum import Choice, Source, WeightedSum
from archc.ir.value_names import cotangent
from archc.lowering.attention import READ, READER, Tokens, clean
from archc.lowering.attention_forward import leave, summed
from archc.lowering.attention_gradient import Gradient, gradient_of_readers, gradient_of_tokens
from archc.lowering.attention_heads import HeadRows
from archc.lowering.formula import Known
from archc.tile.compose import Tile, ceil_div
from archc.tile.language import Buffer, Dim, Program
from archc.tile.unread import swept

Turn = Callable[[Tokens, bool, tuple[Tile, ...]], Sequence[Tile]]


class Choosing(HeadRows):
    """The common part of programs of readers and of tokens read."""

    def __init__(self, fold: WeightedSum, name: str, doc: str, held: str, warps: int, ahead: int):
        super().__init__(fold, name, doc, held, warps, ahead)
        assert fold.choice is not None
        self.choice: Choice = fold.choice
        self.size = self._known(fold.choice.size)

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
        """The walk over the tokens that the reader has chosen, in order: single tokens, or blocks,
        each in as many turns as it needs."""
        k, block, size = self.k, self.BLOCK[READ], self.k.lift(self.size, "i32")
        where = [self.b, self.mine.at, *self.among_choices()]
        chosen = k.load(self.count, *where).named("chosen")
        if self.choice.single:
            with k.loop(0, (chosen + (block - 1)) // block, *carried) as loop:
                self.entry = (loop.index * block + k.iota("s", block)).named("entry")
                s = self.tokens_at(where, self.entry, chosen)
                loop.next(*turn(Tokens(s, s), True, loop.carried))
            return [*loop.results]
        turns = ((size + (block - 1)) // block).named("turns", "of one block")
        with k.loop(0, chosen * turns, *carried) as loop:
            at = k.load(self.listed, *where, loop.index // turns).named("at_block")
            inner = ((loop.index % turns) * block + k.iota("s", block)).named("inner")
            s = at * size - k.lift(self.START) + inner
            s = k.where((inner < size) & (s < self.S), s, k.lift(self.S)).named("s")
            loop.next(*turn(Tokens(s, s), True, loop.carried))
        return [*loop.results]


def by_choice(fold: WeightedSum, name: str = "attend_chosen") -> Program:
    """o, and of a softmax the log of the sum of weights of each reader and head."""
    doc = "The heads of a group as rows walk the blocks that their reader has chosen."
    w = OneReader(fold, name, doc, READER, 4, 3)
    values = fold.source(fold.values) if fold.values else None
    o = w.made_of("o", values)
    lse = w.made("lse", READER, None) if fold.softmax else None
    w.stand()
    leave(w, o, lse, summed(w, values), values)
    return swept(w.k.done())


class _GradientOfReader(Gradient, OneReader):
    """The gradient of what is of one reader."""


def of_choosers(fold: WeightedSum, name: str = "attend_chosen_readers") -> Program:
    """The gradients of what is of the reader, or of the head; and delta, for the other program."""
    doc = "Gradients of a reader: its heads walk the blocks that it has chosen."
    return gradient_of_readers(_GradientOfReader(fold, name, doc, READER, 4, 3))


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
