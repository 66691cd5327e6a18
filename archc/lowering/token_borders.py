"""The borders of packed sequences in the program of a token region.

The rows of a program are the tokens of one sequence after the other, each with as many rows in
front of its tokens as are looked back on. A table of the launch has a column for each row: the
token that its sequence begins with, the one after its last, and which sequence it is. So a value
some tokens before or after a row's own is that of another row, which knows its own sequence.
"""

from __future__ import annotations

from dataclasses import dataclass

import sympy

from archc.tile.compose import Composer
from archc.tile.handle import Tile
from archc.tile.language import Buffer

SEQUENCES, TABLE = "SEQUENCES", "borders"
"""How many sequences there are, and what the table is called."""


@dataclass(frozen=True, eq=False)
class Look:
    """What the table says of a block of rows: their tokens, and of the sequence of each the token
    that it begins with, the one after its last, and which it is."""

    token: Tile
    start: Tile
    end: Tile
    sequence: Tile

    @property
    def local(self) -> Tile:
        """How many tokens of the sequence stand before."""
        return self.token - self.start

    def inside(self, tokens: Tile) -> Tile:
        """Whether rows are tokens of their sequence; and there, whatever the table says."""
        there = (self.token >= 0) & (self.token < tokens)
        return (self.token >= self.start) & (self.token < self.end) & there


class Borders:
    """The table of a program, of sequences that have `before` rows each before their tokens."""

    def __init__(self, k: Composer, tokens: sympy.Expr, before: sympy.Expr, name: str):
        (self.sequences,) = k.sizes(SEQUENCES, varying=True)
        self.k, self.before = k, before
        self.rows = tokens + self.sequences * before
        self.table: Buffer = k.memory(name, {"edge": 3, "row": self.rows}, "i64")

    def look(self, row: Tile) -> Look:
        """What there is at rows; of those that there are not it says that no token is inside."""
        k = self.k
        there = (row >= 0, row < k.lift(self.rows, "i32"))
        named = [k.load(self.table, edge, row, where=there, wide=False) for edge in range(3)]
        start, end, sequence = (
            tile.named(name) for tile, name in zip(named, ("start", "end", "sequence"), strict=True)
        )
        token = row - (sequence + 1) * k.lift(self.before, "i32")
        return Look(token, start, end, sequence)
