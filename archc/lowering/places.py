"""The places of the largest numbers of a row -> a tile program that lists them in order.

A program has one row, and is told the least number that is among the largest. It counts the larger
ones first: of those that equal the least, the first take the places that these leave.
"""

from __future__ import annotations

from archc.tile.compose import Composer, Tile
from archc.tile.language import Program


def places(name: str = "largest_places") -> Program:
    """listed[row, i]: the places of the `MOST` largest numbers of a row, in order, and -1 behind
    them. What is no number counts as the largest; it is not listed, and neither is -inf."""
    k = Composer(name, "The places of the largest numbers of a row, in order.", 4, 2)
    (ROWS, S), (MOST,) = k.sizes("ROWS", "S", varying=True), k.sizes("MOST")
    (block,) = k.lengths("BLOCK_S")
    score = k.memory("score", {"row": ROWS, "s": S})
    least = k.memory("least", {"row": ROWS})
    listed = k.memory("listed", {"row": ROWS, "most": MOST}, "i32")
    row = k.program("row", ROWS)
    edge, blocks = k.load(least, row).named("edge"), (k.lift(S, "i32") + (block - 1)) // block

    def of_block(index: Tile) -> tuple[Tile, Tile, Tile]:
        """The places of a block, whether there are such, and the numbers."""
        s = (index * block + k.iota("s", block)).named("s")
        there = (s < S).named("there")
        return s, there, k.load(score, row, s, where=[there], fill=float("-inf"))

    with k.loop(0, blocks, k.lift(0, "i32"), index="i") as loop:
        s, there, x = of_block(loop.index)
        larger = k.where(there & (x <= edge), 0.0, k.where(there, 1.0, 0.0)).named("larger")
        loop.next(loop.carried[0] + larger.sum("s").to("i32"))
    room = (k.lift(MOST, "i32") - loop.results[0]).named("room", "for those that equal the least")
    with k.loop(0, blocks, k.lift(0, "i32"), k.lift(0, "i32"), index="j") as loop:
        s, there, x = of_block(loop.index)
        taken, equals = loop.carried
        equal = k.where(x.equals(edge), 1.0, 0.0).named("equal")
        rank = (equals + equal.scan("sum", "s").to("i32")).named("rank")
        first = x.equals(edge) & (rank <= room)
        take = (first | (x > edge)) & (x > float("-inf")) & there
        own = k.where(take, 1.0, 0.0).named("own")
        place = (taken + own.scan("sum", "s").to("i32") - 1).named("place")
        where = [take, place >= 0, place < MOST]
        k.store(listed, row, place, value=s, where=where, exclusive=True)
        loop.next(taken + own.sum("s").to("i32"), equals + equal.sum("s").to("i32"))
    return k.done()
