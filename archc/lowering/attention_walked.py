"""What a program of an attention reads in its loop: blocks of vectors, and tables of pairs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from archc.dims import Axis
from archc.lowering.formula import Known
from archc.tile.compose import Tile, size
from archc.tile.language import Buffer

if TYPE_CHECKING:
    from archc.lowering.attention import Sweep, Tokens

COPIED = size("COPIED")
"""1 where the copy engine reads blocks of vectors: they lie multiples of 16 bytes apart."""


def vectors(
    w: Sweep, buffer: Buffer, index: Callable[[Tile], list[Tile | int]], t: Tokens, dim: Axis,
    masks: Sequence[Tile],
) -> Tile:  # fmt: skip
    """A block of vectors in the dtype of the data, 0 where they are masked: by the copy engine, if
    a launch says so, where the block is walked and nothing of it masked."""
    k, where = w.k, [*masks, w.inside[dim.name]]
    if not w.copies or masks or t.begin is None or t is w.mine:
        return k.load(buffer, *index(t.at), where=where, wide=False)
    k.fixed(COPIED)
    start = [0 if each is w.places[dim.name] else each for each in index(t.begin)]
    dims = {each.name: each for each in (w.columns, w.dim(dim))}
    with k.branch(k.at_most(1, COPIED)) as copied:
        copied.give(k.load_block_where(COPIED.name, buffer, *start, **dims))
    with k.otherwise(copied) as loaded:
        loaded.give(k.load(buffer, *index(t.at), where=where, wide=False))
    return copied.results[0]


def looked_up(w: Sweep, inputs: dict[str, Known], walked: Tokens) -> dict[str, Known]:
    """The inputs of pairs, with tables read at the index of each."""
    found = dict(inputs)
    for lookup in w.fold.lookups:
        formula = w.formula(w.fold.pairs, found, walked)
        at = formula.value(w.fold.pairs.outputs[lookup.index])
        at = at.over(w.rows, w.columns).named("at")
        source = w.fold.source(lookup.table)
        assert source.table is not None
        length = w.N[source.table.name]
        address = (w.buffers[source.name], *w.index(source, None, 0, at))
        there = (at >= 0) & (at < length)
        has = (w.k.lift(length) > 0).named(f"has_{source.name}", IN_A_BRANCH)
        with w.k.branch(has) as taken:
            taken.give(w.k.load(*address, where=[there]))
        with w.k.otherwise(taken) as never:
            never.give(w.k.full(-math.inf, w.rows, w.columns))
        found[lookup.name] = taken.results[0].named(lookup.name)
    return found


IN_A_BRANCH = "always: what no branch reads, Triton loads blocks ahead, into shared memory"
