"""The borders of packed sequences in the program of a token region.

The rows of a program are the tokens of one sequence after the other; where pasts have gradients,
each sequence has as many rows in front of its tokens. A table of the launch has a column for each
row: the token that its sequence begins with, the one after its last, and which sequence it is.

A value at other tokens than the row's own counts for the row's sequence alone: every other token is
to it as one before the first, or after the last.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import sympy

from archc.dims import Axis
from archc.tile.compose import Composer
from archc.tile.handle import Tile
from archc.tile.language import Buffer

if TYPE_CHECKING:
    from archc.lowering.values import Index

SEQUENCES, TABLE = "SEQUENCES", "borders"
"""How many sequences there are, and what the table is called."""


class Borders:
    """The table of a program, and what it says of the block of rows that the program is at."""

    def __init__(self, k: Composer, tokens: sympy.Expr, before: sympy.Expr, name: str):
        (self.sequences,) = k.sizes(SEQUENCES, varying=True)
        self.k, self.tokens, self.before = k, tokens, before
        self.rows = tokens + self.sequences * before
        self.table: Buffer = k.memory(name, {"edge": 3, "row": self.rows}, "i64")
        self.first: Tile
        self.start: Tile
        self.end: Tile
        self.sequence: Tile

    def look(self, first: Tile, stream: Axis, block: sympy.Expr) -> None:
        """Look at the block of rows that begins there."""
        k = self.k
        row = first + k.iota(stream.name, block)
        there = (row < k.lift(self.rows, "i32"),)
        named = [k.load(self.table, edge, row, where=there, wide=False) for edge in range(3)]
        self.start, self.end, self.sequence = (
            tile.named(name) for tile, name in zip(named, ("start", "end", "sequence"), strict=True)
        )
        self.first = row
        if self.before != 0:
            self.first = row - (self.sequence + 1) * k.lift(self.before, "i32")

    def moved(self, steps: Tile | int, first: Tile, stream: Axis, block: sympy.Expr) -> Tile:
        """The tokens some steps after those of the rows."""
        if self.before == 0:  # rows are tokens: addresses are of neighbours
            still = isinstance(steps, int) and steps == 0
            return (first if still else first + steps) + self.k.iota(stream.name, block)
        return self.first + steps

    def inside(self, token: Tile) -> Tile:
        """Whether tokens are of the row's own sequence; and there, whatever the table says."""
        there = (token >= 0) & (token < self.k.lift(self.tokens, "i32"))
        return (token >= self.start) & (token < self.end) & there

    def local(self, token: Tile) -> Tile:
        """How many tokens of the sequence stand before."""
        return token - self.start

    def at_edge(self, index: Index, count: Tile, tail: bool) -> tuple[Tile, list[Tile]]:
        """The place among the `count` tokens before the first one, or among the last ones of a
        tail, and whether there is one."""
        from_edge = index.at - (self.end if tail else self.start)
        place = from_edge + count
        masks = [from_edge < 0, place >= 0]
        return place, [*masks, *([self.inside(index.at)] if tail else [])]
