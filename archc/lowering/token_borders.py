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

SEQUENCES, ROWS, TABLE = "SEQUENCES", "ROWS", "borders"
"""How many sequences and rows there are, and what the table is called."""


@dataclass(frozen=True, eq=False)
class Look:
    """A block of rows in the table: their tokens, and of the sequence of each the token after its
    last, how many tokens stand before, whether it has that one, and its number."""

    token: Tile
    end: Tile
    local: Tile
    inside: Tile
    sequence: Tile


class Borders:
    """The table of a program, if there is one: of sequences that have `before` rows each before
    their tokens. Without it the rows are those of a row of the batch, `ahead` of them before its
    tokens."""

    def __init__(self, k: Composer, before: sympy.Expr, ahead: sympy.Expr, name: str):
        (self.sequences,) = k.sizes(SEQUENCES, varying=True)
        (self.rows,) = k.sizes(ROWS, varying=True)
        self.k, self.before, self.ahead = k, before, ahead
        axes = {"edge": 3, "row": self.rows}
        self.table: Buffer = k.memory(name, axes, "i64", optional=True)

    def look(self, first: Tile, step: Tile, tokens: Tile, batch: Tile) -> Look:
        """The entries of the rows `first + step`."""
        given = (first, step, tokens, batch, self.before, self.ahead)
        return Look(*self.k.sequence_rows(self.table, *given))
