"""The places of the largest numbers of a row -> tile programs that list them in order.

A program has one row. One that fits in a block is read once. Of longer ones there are two programs:
the first finds a bound that many enough of a row's numbers reach, by the
largest of each of so many parts of it, and keeps what does: a few more than are asked for. The
second finds the least of the largest among these, bit by bit, and lists. Where there is no room for
what reaches the bound it takes the whole row instead: slower, and the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from archc.tile.compose import Composer, Tile, size
from archc.tile.language import Dim, Program

HIGHEST, WRONG, NOTHING = 2**31 - 1, 2**31 - 2**16, -2139095040
"""What is no number, and -inf, as whole numbers in the order of numbers, above LOWEST. All bits
of a number of 16 bits are among the upper ones of these, as `BITS` says."""
LOWEST = -WRONG
BITS = size("BITS")
"""How many bits of these, behind that of the sign, tell one number from another."""
BOTH = 1 << 16
"""Larger ones are counted in steps of this, beside those that equal a bound: blocks are shorter."""


class _Rows:
    """The common part: rows of numbers, and of long ones what of them is kept."""

    def __init__(self, name: str, *doc: str, kept: bool = True):
        self.k = k = Composer(name, "\n".join(doc), 8, 2)
        (ROWS, self.S), (self.MOST,) = k.sizes("ROWS", "S", varying=True), k.sizes("MOST")
        (self.IO,), (self.block,) = k.dtypes("IO"), k.lengths("BLOCK_S")
        k.fixed(BITS)
        self.score = k.memory("score", {"row": ROWS, "s": self.S}, self.IO)
        if kept:
            (self.ROOM,) = k.sizes("ROOM")
            self.kept = k.memory("kept", {"row": ROWS, "room": self.ROOM})
            self.place = k.memory("place", {"row": ROWS, "room": self.ROOM}, "i32")
            self.found = k.memory("found", {"row": ROWS}, "i32")
        self.rows, self.row = ROWS, k.program("row", ROWS)

    def blocks(self, count: Tile) -> Tile:
        """How many blocks have so many numbers."""
        return (count + (self.block - 1)) // self.block

    def places(self, index: Tile) -> Tile:
        """The places of a block."""
        return (index * self.block + self.k.iota("s", self.block)).named("s")

    def key(self, x: Tile) -> Tile:
        """Numbers as whole ones in the same order: of no sign if 0, and the highest if none."""
        k = self.k
        bits = k.where(x.equals(0.0), 0.0, x).to("i32", bits=True).named("bits")
        below = -(k.apply("min", bits, -1) + HIGHEST) - 1
        ordered = k.where(bits >= 0, bits, below)
        note = "whole numbers in the order of these; that of a NaN is above all"
        return k.where(x.equals(x), ordered, WRONG).named("key", note)

    def bound(self, count: Callable[[Tile], Tile]) -> Tile:
        """The highest key that `MOST` reach, as `count` says how many reach one; the lowest where
        fewer do."""
        k = self.k
        enough = count(k.lift(0, "i32")) >= self.MOST
        note = "the highest key that MOST reach, bit by bit, of the sign first"
        start = k.where(enough, k.lift(0, "i32"), LOWEST).named("bound", note)
        with k.loop(0, BITS, start, k.lift(2**30, "i32"), index="bit") as loop:
            so_far, step = loop.carried
            more = (so_far + step).named("more")
            loop.next(k.where(count(more) >= self.MOST, more, so_far), step // 2)
        return loop.results[0]

    def one(self, condition: Tile, number: int = 1) -> Tile:
        """A number where a condition holds, else 0."""
        return self.k.where(condition, self.k.lift(number, "i32"), 0)

    def sum(self, condition: Tile) -> Tile:
        """Of how many a condition holds."""
        return self.one(condition).sum("s")

    def taken(
        self, key: Tile, bound: Tile, room: Tile, there: Tile, before: tuple[Tile, ...]
    ) -> tuple[Tile, Tile, tuple[Tile, Tile]]:
        """Which numbers of a block are above a bound, or among the first that equal it and have
        room; where each of them goes; and how many of either there are up to its end."""
        k, (larger, equal) = self.k, before
        there = k.noted(there & (key > NOTHING), "that is the key of -inf")
        above, level = there & (key > bound), there & key.equals(bound)
        both = f"both are counted in one number, those above in steps of {BOTH}"
        count = k.noted(self.one(above, BOTH) + self.one(level), both)
        run = count.scan("sum", "s").named("run")
        rank = (equal + run % BOTH).named("rank", "among those that equal the bound")
        take = above | (level & (rank <= room))
        place = larger + run // BOTH + k.apply("min", rank, room) - 1
        total = count.sum("s")
        return take, place.named("place"), (larger + total // BOTH, equal + total % BOTH)


LISTED = "listed = places of the MOST largest of score [row S], -1 behind the last  [row MOST]"


def short_places(name: str = "largest_places", lines: Sequence[str] = ()) -> Program:
    """listed[row, i]: what `places` lists, of a row that is no longer than a block; `lines` of the
    spec that choose."""
    title = "The places of the largest numbers of a short row, in order."
    w = _Rows(name, title, LISTED, *lines, kept=False)
    k, most, none = w.k, w.k.lift(w.MOST, "i32"), w.k.lift(0, "i32")
    listed = k.memory("listed", {"row": w.rows, "most": w.MOST}, "i32")
    s = k.iota("s", w.block).named("s")
    there = (s < w.S).named("there")
    key = w.key(k.load(w.score, w.row, s, where=[there], fill=float("-inf")))
    edge = w.bound(lambda bound: w.sum(there & (key >= bound))).named("edge")
    room = (most - w.sum(there & (key > edge))).named("room", "for those that equal the least")
    take, at, _ = w.taken(key, edge, room, there, (none, none))
    where = [take, at >= 0, at < w.MOST]
    k.store(listed, w.row, at, value=s, where=where, exclusive=True)
    return k.done()


def candidates(name: str = "largest_candidates", lines: Sequence[str] = ()) -> Program:
    """kept[row, i], place[row, i]: numbers of a row among which its `MOST` largest are, in order,
    and their places; found[row]: how many they are, for which there may be no room."""
    title = "The numbers of a row that reach a bound which `MOST` of them do, in order."
    made = (
        "kept = those of score [row S], place = their places  [row ROOM]; found = how many  [row]"
    )
    w = _Rows(name, title, made, *lines)
    k, S, dim = w.k, w.k.lift(w.S, "i32"), Dim("s", w.block)
    lowest = k.full(LOWEST, dim, dtype="i32").named("highest", "of each part of the row")
    with k.loop(0, w.blocks(S), lowest, index="i") as loop:
        s = w.places(loop.index)
        x = k.load(w.score, w.row, s, where=[s < S], fill=float("-inf"))
        loop.next(k.apply("max", loop.carried[0], w.key(x)))
    highest = loop.results[0]
    bound, most = w.bound(lambda key: w.sum(highest >= key)), k.lift(w.MOST, "i32")
    with k.loop(0, w.blocks(S), k.lift(0, "i32"), k.lift(0, "i32"), index="j") as loop:
        s = w.places(loop.index)
        there = (s < S).named("there")
        x = k.load(w.score, w.row, s, where=[there], fill=float("-inf"))
        take, at, after = w.taken(w.key(x), bound, most, there, loop.carried)
        where = [take, at >= 0, at < w.ROOM]
        k.store(w.kept, w.row, at, value=x, where=where, exclusive=True)
        k.store(w.place, w.row, at, value=s, where=where, exclusive=True)
        loop.next(*after)
    larger, equal = loop.results
    k.store(w.found, w.row, value=larger + k.apply("min", equal, most))
    return k.done()


def places(name: str = "largest_places", lines: Sequence[str] = ()) -> Program:
    """listed[row, i]: the places of the `MOST` largest numbers of a row, in order, and -1 behind
    them; of equals the first, never -inf. What is no number counts as the largest."""
    title = "The places of the largest numbers of a row, in order."
    looked = "Looked at: kept [row ROOM], or score where found [row] have no room."
    w = _Rows(name, title, LISTED, looked, *lines)
    k, most = w.k, w.k.lift(w.MOST, "i32")
    listed = k.memory("listed", {"row": w.rows, "most": w.MOST}, "i32")
    found = k.load(w.found, w.row).named("found")
    fits = (found <= w.ROOM).named("fits")
    count = k.where(fits, found, k.lift(w.S, "i32")).named("count", "of the row if nothing fits")

    def keys(index: Tile) -> tuple[Tile, Tile, Tile]:
        """The numbers of a block of what is looked at, as keys, and whether there are such."""
        i = w.places(index)
        there = (i < count).named("there")
        x = k.load(w.kept, w.row, i, where=[there & fits, i < w.ROOM])
        other = k.load(w.score, w.row, i, where=[there & ~fits, i < w.S])
        return w.key(k.where(fits, x, other)), there, i

    def reach(bound: Tile) -> Tile:
        with k.loop(0, w.blocks(count), k.lift(0, "i32"), index="i") as loop:
            key, there, _ = keys(loop.index)
            loop.next(loop.carried[0] + w.sum(there & (key >= bound)))
        return loop.results[0]

    edge = w.bound(reach).named("edge")
    above = reach(edge + 1).named("above")
    room = (most - above).named("room", "for those that equal the least")
    with k.loop(0, w.blocks(count), k.lift(0, "i32"), k.lift(0, "i32"), index="j") as loop:
        key, there, i = keys(loop.index)
        take, at, after = w.taken(key, edge, room, there, loop.carried)
        own = k.load(w.place, w.row, i, where=[there & fits, i < w.ROOM])
        where = [take, at >= 0, at < w.MOST]
        s = k.where(fits, own, i)
        k.store(listed, w.row, at, value=s, where=where, exclusive=True)
        loop.next(*after)
    return k.done()
