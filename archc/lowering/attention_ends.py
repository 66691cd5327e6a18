"""The blocks that a program walks where places of what is read stand for several positions each, as
those of blocks of tokens do: without those that end behind the last reader, or begin before what is
read has ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

from archc.attention.bounds import ends_of
from archc.tile.compose import Tile

if TYPE_CHECKING:
    from archc.lowering.attention import Sweep

Range = tuple[Tile, Tile, Tile, Tile]


def within_ends(w: Sweep, low: Tile, whole_low: Tile, whole_high: Tile, high: Tile) -> Range:
    """Where what is walked begins and ends, and the same for all that is held, by ends that the
    mask says beside its bounds; pairs are masked as before."""
    k, block = w.k, w.BLOCK[w.walked]
    for end in ends_of(w.fold):
        each, past = (k.lift(w._known(number), "i32") for number in (end.each, end.past))
        if w.held == "reader":
            room = k.apply("max", w.position("reader", w.last()) + each - past, 0)
            ended = room // k.apply("max", each, 1) - k.lift(w.START)
            ended = k.apply("min", high, k.apply("max", ended, 0))
            high = k.where(each > 0, ended, high).named("ended", "before the last reader")
            whole_high = k.apply("min", whole_high, (high + (block - 1)) // block * block)
        else:
            near = w.position("read", w.first) * each + past - k.lift(w.POS)
            near = near if w.ahead is None else near - w.ahead
            note = "the first reader that what is read has ended for"
            low = k.where(each > 0, k.apply("max", low, near), low).named("near", note)
            whole_low = k.apply("max", whole_low, low)
    return low, whole_low, whole_high, high
