"""Kernels of pairs of rows that decay: two launches, of which the second is for hard gates.

    first:   a chunk a program, as if gates were moderate; hard[chunk] says whether they are
    second:  RUN chunks a program; those that are hard are made again, by the tree of `pairs.py`

A program with both ways has the registers of the rare one. Where no gate is hard, programs of the
second launch read RUN flags and end. Hardly any chunk is moderate in the range of float16: of such
data the first launch makes nothing, and the second one all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import sympy

from archc.tile.compose import Composer, size
from archc.tile.handle import Tile

AGAIN, RUN = size("AGAIN"), size("RUN")
"""Whether a launch is the second one (1) or the first (0); chunks of a program, 1 in the first."""

HARD = "hard"
"""The name of the buffer of flags, one for each program of the first launch."""

TOLD = (
    "Launched twice. AGAIN = 0: chunks as if their gates were moderate; `hard`: whether they are. "
    "AGAIN = 1: RUN chunks a program, of which those that are hard are made again."
)
"""The second line of such a kernel's docstring."""


class Twice:
    """The chunks of a program of such a kernel, one after the other: `n` says which, of `chunks`.
    `grid`: where a program stands along each axis of the grid, by name, with its length; along
    "n" it has a run of chunks."""

    def __init__(
        self, k: Composer, grid: Mapping[str, tuple[Tile, sympy.Expr]], chunks: sympy.Expr,
        operand: str,
    ):  # fmt: skip
        self.k, self.chunks = k, k.lift(chunks, "i32")
        first, *formulas = k.doc.split("\n")
        k.doc = "\n".join([first, TOLD, *formulas])
        axes = {name: chunks if name == "n" else length for name, (_, length) in grid.items()}
        doc = "whether gates of a chunk are hard, by the first launch"
        self.flags = k.memory(HARD, axes, "i32", doc=doc)
        self.place = {name: at for name, (at, _) in grid.items()}
        self.first, self.again = k.at_most(AGAIN, 0), k.at_most(1, AGAIN)
        self.narrow = k.chosen(operand, "f16")
        self.begin = (self.place["n"] * RUN).named("first_n")
        self.n, self.noted = self.begin, False

    @contextmanager
    def each(self) -> Iterator[None]:
        """The work on each chunk that this launch makes."""
        k = self.k
        with k.loop(0, self._turns(), index="turn") as turn:
            self.n = (self.begin + turn.index).named("n")
            with k.branch(self._is_wanted()):
                yield
            turn.next()

    def _turns(self) -> Tile:
        """How many chunks a program has: none where none of them is hard."""
        k, n = self.k, self.begin + self.k.iota("run", RUN)
        with k.branch(self.first) as first:
            first.give(k.where(self.narrow, 0, k.lift(1, "i32")))
        with k.otherwise(first) as again:
            most = self._flag(n).max("run")
            again.give(k.where((most > 0) | self.narrow, k.lift(RUN, "i32"), 0))
        return first.results[0].named("turns")

    def _is_wanted(self) -> Tile:
        """Whether this launch makes chunk `n`."""
        k, inside = self.k, self.n < self.chunks
        with k.branch(self.first) as first:
            first.give(inside)
        with k.otherwise(first) as again:
            again.give(inside & ((self._flag(self.n) > 0) | self.narrow))
        return first.results[0].named("wanted")

    def _flag(self, n: Tile) -> Tile:
        place = {**self.place, "n": n}.values()
        return self.k.load(self.flags, *place, where=[n < self.chunks])

    def takes_tree(self, hard: Tile) -> Tile:
        """Whether this launch makes pairs by the tree; the first one notes where they are hard."""
        k = self.k
        with k.branch(self.first):
            place, where = {**self.place, "n": self.n}.values(), [hard] if self.noted else []
            k.store(self.flags, *place, value=k.where(hard, k.lift(1, "i32"), 0), where=where)
        self.noted = True
        return self.again
