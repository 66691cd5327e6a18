"""A fold over few tokens read -> the tile program of its values: all that heads share of what is
read stands on chip, and a block of readers goes through these heads, one after the other.

What a head needs besides, its readers, is loaded while the one before is done.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from archc.attention.row_heads import rows_of
from archc.attention.weighted_sum import WeightedSum
from archc.lowering.attention import READ, READER, Sweep, Tokens
from archc.lowering.attention_forward import leave, summed
from archc.lowering.attention_heads import HeadRows
from archc.lowering.formula import Known
from archc.tile.compose import Tile, ceil_div
from archc.tile.language import Program
from archc.tile.unread import swept


def takes_turns(fold: WeightedSum) -> bool:
    """Whether all that is read is the same for several heads, and no more than keys and values,
    for which there is room."""
    rows = rows_of(fold)
    if rows.head is None or fold.choice is not None or fold.lookups or fold.dropout is not None:
        return False
    read = [source for source in fold.sources if source.role == READ]
    own = any(
        at == rows.head.name and name != rows.groups for s in read for name, at, _ in s.shares
    )
    few = sum(source.dim is not None for source in read) <= 2
    return few and not own and not any(source.summed for source in fold.sources)


class _Turns(HeadRows):
    """A program of a block of readers and of all tokens read, whose heads take turns."""

    def __init__(self, fold: WeightedSum, name: str):
        doc = "The heads of a group, one after the other, and all that they read."
        super().__init__(fold, name, doc, READER, 4, 2)
        self.looped = READER
        self.read = dict[str, Known]()

    def stand(self) -> None:
        """The grid: blocks of readers, the longest rows first, sequences, and groups of heads, as
        readers of all heads lie side by side in memory."""
        k, count = self.k, ceil_div(self.T, self.BLOCK[READER])
        place = k.program("block", count)
        self.stand_among_heads()
        late = (k.lift(count - 1) - place).named("late", "the longest rows first")
        self.stand_on((late * self.BLOCK[READER]).named("first"))
        self.seen = self.tokens(k.lift(0, "i32"), READ)
        self.read = super().loaded(READ, self.seen, [self.inside_of(self.seen, READ)])

    def last(self) -> Tile:
        """The last of the block of readers."""
        return Sweep.last(self)

    def at_head(self, turn: Tile) -> None:
        """Stand at one of the heads of the group."""
        head = self.packed.head
        assert head is not None
        at = turn if self.group is None else self.group * self.k.lift(self.share, "i32") + turn
        heads = {**self.heads, head.name: at}
        self.heads = {h.name: heads[h.name] for h in self.fold.heads}

    def loaded(self, role: str, tokens: Tokens | None, masks: Sequence[Tile]) -> dict[str, Known]:
        """Every source of a kind; what is read stands on chip already."""
        return self.read if role == READ else super().loaded(role, tokens, masks)

    def walk(
        self,
        carried: Sequence[Tile],
        turn: Callable[[Tokens, bool, tuple[Tile, ...]], Sequence[Tile]],
    ) -> list[Tile]:
        """The one block of what is read."""
        return [*turn(self.seen, True, tuple(carried))]


def in_turns(fold: WeightedSum, name: str = "attend_turns") -> Program:
    """What `forward` finds, of as many tokens read as there are in a block."""
    w = _Turns(fold, name)
    values = fold.source(fold.values) if fold.values else None
    o = w.made_of("o", values)
    lse = w.made("lse", READER, None) if fold.softmax else None
    w.stand()
    with w.k.loop(0, w.k.lift(w.share, "i32"), index="turn") as loop:
        w.at_head(loop.index)
        leave(w, o, lse, summed(w, values), values)
        loop.next()
    return swept(w.k.done())
