"""The gradient of tokens that readers have chosen one by one -> two tile programs.

A token may be chosen by any readers, and no sum may depend on the order in which programs run: the
first makes of every chosen pair of a reader and a token what it adds to the token's gradient, an
entry for each place of the reader's list; the second adds the entries of each token in their order.
The caller takes so many readers at a time that their entries have room.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from archc.attention.row_heads import heads_beside
from archc.attention.weighted_sum import Source, WeightedSum
from archc.ir.value_names import cotangent
from archc.lowering.attention import READ, READER, Tokens, clean
from archc.lowering.attention_chosen import GradientOfRead, Listed, Turn
from archc.lowering.attention_gradient import gradient_of_tokens
from archc.lowering.formula import Known
from archc.tile.compose import Composer, Tile, ceil_div
from archc.tile.language import Buffer, Dim, Program
from archc.tile.unread import swept


class _OfOneReader(Listed):
    """A program of a block of the tokens that one reader has chosen."""

    def __init__(self, fold: WeightedSum, name: str, doc: str, held: str, warps: int, ahead: int):
        super().__init__(fold, name, doc, held, warps, ahead)
        (self.READERS,) = self.k.sizes("READERS", varying=True)
        (self.FIRST,), (self.ENTRY,) = self.k.integers("FIRST"), self.k.dtypes("ENTRY")


class _Entries(GradientOfRead, _OfOneReader):
    """The gradient of the tokens of such a block: it walks the reader's heads."""

    def _result(self, source: Source) -> Buffer:
        """Memory for the entries of a gradient: of each reader and place in its list."""
        axes: dict[str, Any] = {"b": self.B, "reader": self.READERS, "most": self.MOST}
        beside = axes_beside(self, source)
        return self.k.memory(entries_name(source), axes | beside, self.ENTRY)

    def stand(self) -> None:
        """The grid: sequences, groups of heads, readers, and blocks of what they have chosen."""
        k, block = self.k, self.BLOCK[READ]
        self.stand_among_heads()
        self.reader = k.program("reader", self.READERS)
        place = k.program("block", ceil_div(self.MOST, block))
        self.t = (self.reader + k.lift(self.FIRST, "i32")).named("t")
        where = [self.b, self.t, *self.among_choices()]
        chosen = k.load(self.count, *where).named("chosen")
        self.entry = (place * block + k.iota("s", block)).named("entry")
        s = self.tokens_at(where, self.entry, chosen)
        self.rows, self.columns = Dim("s", block), self._walked_dim()
        self.mine = Tokens(s, s)
        self.in_mine = self.inside_of(self.mine, READ)
        self.first = self.final = place * block

    def inside_of(self, tokens: Tokens, role: str) -> Tile:
        """Whether there are such tokens; of the reader, such heads."""
        return super().inside_of(tokens, role) if role == READ else self.in_rows

    def load(
        self, source: Source, tokens: Tokens | None, masks: Sequence[Tile], apart: bool = False
    ) -> Known:
        """A source at some tokens; one of the reader or of all, for the heads that there are."""
        rows = [] if source.role == READ or not self.of_rows(source) else [self.in_rows]
        return super().load(source, tokens, masks if source.role == READ else rows, apart)

    def walk(self, carried: Sequence[Tile], turn: Turn) -> list[Tile]:
        """The heads of the reader, in blocks."""
        k, block, head = self.k, self.BLOCK[READER], self.packed.head
        assert head is not None
        share, others = k.lift(self.share, "i32"), self.heads
        with k.loop(0, (share + (block - 1)) // block, *carried) as loop:
            row = (loop.index * block + k.iota("t", block)).named("row")
            first = k.lift(0, "i32") if self.group is None else self.group * share
            at = (row if self.group is None else first + row).named(clean(head.name))
            self.in_rows = ((row < share) & (at < first + share)).named("in_rows")
            self.heads = {**others, head.name: at}
            self.fixed = self.loaded("same", None, [])
            loop.next(*turn(Tokens(self.t, self.t), True, loop.carried))
        self.heads = others
        return [*loop.results]

    def leave(self, made: Sequence[Tile]) -> None:
        """Store every entry."""
        standing = {**self.heads}
        if self.packed.groups is not None and self.group is not None:
            standing[self.packed.groups] = self.group
        heads = [standing[name] for name in heads_beside(self.fold)]
        for source, total in zip(self.wanted, made, strict=True):
            inside = [self.inside[source.dim.name]] if source.dim is not None else []
            vector = [self.places[source.dim.name]] if source.dim is not None else []
            index = [self.b, self.reader, self.entry, *heads, *vector]
            where = [self.in_mine, self.entry < self.MOST, *inside]
            self.k.store(self.results[source.name], *index, value=total, where=where)


def axes_beside(w: Listed, source: Source) -> dict[str, Any]:
    """The axes of an entry: heads that share nothing, and a vector's own."""
    axes: dict[str, Any] = {f"n_{clean(name)}": w.N[name] for name in heads_beside(w.fold)}
    if source.dim is not None:
        axes[f"d_{clean(source.dim.name)}"] = w.N[source.dim.name]
    return axes


def entries_name(source: Source) -> str:
    """How the entries of a gradient are called."""
    return f"each_{cotangent(source.name).replace('.', '_')}"


def of_entries(fold: WeightedSum, name: str = "attend_singly_entries") -> Program:
    """The addends of each reader to the gradients of the tokens that it has chosen."""
    doc = "Gradients of the tokens that a reader has chosen: it walks the reader's heads."
    return gradient_of_tokens(_Entries(fold, name, doc, READ, 4, 2))


def totals(name: str = "attend_singly_totals") -> Program:
    """total[b, s, x] + the sum of the entries of the token, in the order of a list: `begins` says
    where the list of each token begins and ends; x stands for all heads that share nothing."""
    doc = "The entries of each token, added in their order to what there is."
    k = Composer(name, f"{doc}\ntotal = total + sum[entry of s](entries)  [b s x d]", 1, 3)
    B, S, X, D = k.sizes("B", "S", "X", "D")
    (ENTRIES,), (block, vector) = k.sizes("ENTRIES", varying=True), k.lengths("BLOCK_T", "BLOCK_D")
    order = k.memory("order", {"b": B, "x": X, "entry": ENTRIES}, "i32")
    begins = k.memory("begins", {"b": B, "x": X, "place": S + 1}, "i32")
    (dtype,) = k.dtypes("ENTRY")
    entries = k.memory("entries", {"b": B, "entry": ENTRIES, "x": X, "d": D}, dtype)
    total = k.memory("total", {"b": B, "s": S, "x": X, "d": D})
    b, x, s = k.program("b", B), k.program("x", X), k.program("s", S)
    d = k.iota("d", vector)
    inside = (d < D).named("in_d")
    begin, end = (k.load(begins, b, x, s + i).named(n) for i, n in enumerate(("begin", "end")))
    start = k.load(total, b, s, x, d, where=[inside])
    with k.loop(0, (end - begin + (block - 1)) // block, start, index="i") as loop:
        at = begin + loop.index * block + k.iota("t", block)
        entry = k.load(order, b, x, at, where=[at < end])
        found = k.load(entries, b, entry, x, d, where=[at < end, inside])
        loop.next(loop.carried[0] + found.sum("t"))
    k.store(total, b, s, x, d, value=loop.results[0], where=[inside])
    return swept(k.done())
