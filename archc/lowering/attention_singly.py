"""The gradient of tokens that readers have chosen one by one -> two tile programs.

A token may be chosen by any readers, and no sum may depend on the order in which programs run: the
first has one reader, walks what it has chosen, and leaves beside the reader's own gradient what
each token's gets of it, an entry for each place of its list; the second adds the entries of each
token in their order. The caller takes so many readers at a time that their entries have room.
"""

from __future__ import annotations

from typing import Any

from archc.attention.listing import slopes
from archc.attention.row_heads import heads_beside
from archc.attention.weighted_sum import Source, WeightedSum
from archc.ir.value_names import cotangent
from archc.lowering.attention import READ, READER, Tokens, clean
from archc.lowering.attention_chosen import OneReader
from archc.lowering.attention_gradient import Gradient, gradient_of_readers
from archc.lowering.formula import tile
from archc.tile.compose import Composer, Tile, ceil_div
from archc.tile.language import Buffer, Program
from archc.tile.unread import swept


class _Singly(Gradient, OneReader):
    """A program of one reader of some: what it makes for a token that it has chosen is an entry.
    Its rows are a part of the heads that share what it has chosen, each with entries of its own."""

    keeps_delta = False

    def __init__(self, fold: WeightedSum, name: str, doc: str, held: str, warps: int, ahead: int):
        super().__init__(fold, name, doc, held, warps, ahead)
        (self.READERS,) = self.k.sizes("READERS", varying=True)
        (self.FIRST,), (self.ENTRY,) = self.k.integers("FIRST"), self.k.dtypes("ENTRY")
        learned = map(fold.source, fold.learned)
        self.of_tokens = {s.name: self._entries(s) for s in learned if s.role == READ}

    def equations(self, fold: WeightedSum) -> list[str]:
        """The formulas of the docstring, with those of all gradients."""
        return [*slopes(fold, (READ,)), *super().equations(fold)]

    def _entries(self, source: Source) -> Buffer:
        """Memory for the entries of a gradient: of each reader, place in its list, and part of its
        heads."""
        axes: dict[str, Any] = {"b": self.B, "reader": self.READERS, "most": self.MOST}
        axes |= {f"n_{clean(name)}": self.N[name] for name in heads_beside(self.fold)}
        axes["part"] = ceil_div(self.share, self.BLOCK[READER])
        if source.dim is not None:
            axes[f"d_{clean(source.dim.name)}"] = self.N[source.dim.name]
        return self.k.memory(entries_name(source), axes, self.ENTRY)

    def reader(self) -> Tile:
        """The reader of a program, of those that are taken at once."""
        self.place = self.k.program("reader", self.READERS)
        return (self.place + self.k.lift(self.FIRST, "i32")).named("t")

    def pairs_done(
        self, s: Tokens, p: Tile, found: dict[str, Tile], readers: dict[str, Tile]
    ) -> None:
        """Store the entries of a block of tokens."""
        standing = {**self.heads}
        if self.packed.groups is not None and self.group is not None:
            standing[self.packed.groups] = self.group
        heads = [standing[name] for name in heads_beside(self.fold)]
        there = [self.inside_of(s, READ), self.entry < self.MOST]
        for name, buffer in self.of_tokens.items():
            dim = self.fold.source(name).dim
            inside = [self.inside[dim.name]] if dim is not None else []
            vector = [self.places[dim.name]] if dim is not None else []
            index = [self.b, self.place, self.entry, *heads, self.at_rows, *vector]
            value = self._entry(name, p, found, readers)
            self.k.store(buffer, *index, value=value, where=[*there, *inside])

    def _entry(self, name: str, p: Tile, found: dict[str, Tile], readers: dict[str, Tile]) -> Tile:
        """What the rows add to the gradient of one value of each token of a block."""
        total, rows = None, self.rows.name
        if self.values is not None and name == self.values.name:
            total = p.to(self.IO).dot(readers["d_o"], precision=self.PRECISION)
        for dot in self.fold.dots:
            d = found.get(cotangent(dot.name))
            if dot.read == name and d is not None:
                d = d.over(self.rows, self.columns).to(self.IO)
                total = d.dot(tile(self.own[dot.reader]), total, precision=self.PRECISION)
        d = found.get(cotangent(name))
        if d is not None:
            more = d.over(self.rows, self.columns).sum(rows)
            total = more if total is None else total + more
        assert total is not None
        return total


def entries_name(source: Source) -> str:
    """How the entries of a gradient are called."""
    return f"each_{cotangent(source.name).replace('.', '_')}"


def of_singly(fold: WeightedSum, name: str = "attend_singly_gradient") -> Program:
    """The gradients of what is of some readers, and the addends of each to those of the tokens that
    it has chosen."""
    doc = "Gradients of a reader, and of each token that it has chosen an entry."
    return gradient_of_readers(_Singly(fold, name, doc, READER, 8, 2))


def totals(name: str = "attend_singly_totals") -> Program:
    """total[b, s, x] + the sum of the entries of the token, in the order of a list: `begins` says
    where the list of each token begins and ends; x stands for all heads that share nothing, and a
    reader has an entry for each `part` of those that share."""
    doc = "The entries of each token, added in their order to what there is."
    k = Composer(name, f"{doc}\ntotal = total + sum[entry of s](entries)  [b s x d]", 1, 3)
    B, S, X, D = k.sizes("B", "S", "X", "D")
    (ENTRIES,), (PARTS,) = k.sizes("ENTRIES", varying=True), k.sizes("PARTS")
    block, vector = k.lengths("BLOCK_T", "BLOCK_D")
    order = k.memory("order", {"b": B, "x": X, "entry": ENTRIES}, "i32")
    begins = k.memory("begins", {"b": B, "x": X, "place": S + 1}, "i32")
    (dtype,) = k.dtypes("ENTRY")
    entries = k.memory("entries", {"b": B, "entry": ENTRIES, "x": X, "part": PARTS, "d": D}, dtype)
    total = k.memory("total", {"b": B, "s": S, "x": X, "d": D})
    b, x, s = k.program("b", B), k.program("x", X), k.program("s", S)
    d = k.iota("d", vector)
    inside = (d < D).named("in_d")
    begin, end = (k.load(begins, b, x, s + i).named(n) for i, n in enumerate(("begin", "end")))
    start = k.load(total, b, s, x, d, where=[inside])
    parts = k.lift(PARTS, "i32")
    count = ((end - begin) * parts).named("count", "entries of its readers, of each part of heads")
    with k.loop(0, (count + (block - 1)) // block, start, index="i") as loop:
        at = loop.index * block + k.iota("t", block)
        there = (at < count).named("there")
        entry = k.load(order, b, x, begin + at // parts, where=[there])
        found = k.load(entries, b, entry, x, at % parts, d, where=[there, inside])
        loop.next(loop.carried[0] + found.sum("t"))
    k.store(total, b, s, x, d, value=loop.results[0], where=[inside])
    return swept(k.done())
