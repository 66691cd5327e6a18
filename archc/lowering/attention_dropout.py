"""Weights of a block of pairs that dropout leaves: the same by each program that makes them."""

from __future__ import annotations

from collections.abc import Sequence

import sympy

from archc.lowering.attention import READ, READER, Sweep, Tokens
from archc.lowering.dropout import staying
from archc.tile.compose import Tile, ceil_div
from archc.tile.language import Dim


def kept(w: Sweep, numbers: Sequence[Tile], walked: Tokens) -> list[Tile]:
    """Numbers of a block of pairs, each times a factor: 0 where dropout takes the pair, and about
    1/(1 - p) elsewhere. They are as they were without a seed."""
    if w.seed is None or w.fold.dropout is None:
        return [*numbers]
    k, dims = w.k, (w.rows, w.columns)
    numbers = [number.over(*dims) for number in numbers]
    with k.branch(k.given(w.seed)) as there:
        least, grown = staying(k, w.numbers.get(w.fold.dropout, w.fold.dropout))
        left = (_random(w, walked) >= least).ordered(*(dim.name for dim in dims))
        there.give(*(k.where(left, number * grown, 0.0) for number in numbers))
    with k.otherwise(there) as missing:
        missing.give(*numbers)
    return [*there.results]


def _random(w: Sweep, walked: Tokens) -> Tile:
    """A random number for each pair of a block [t, s], a function of the seed, the head, the place
    of the reader in memory, and that of the token read in its sequence: of each row of pairs eight
    by a counter."""
    k = w.k
    t, s = (w.mine, walked) if w.held == READER else (walked, w.mine)
    assert w.seed is not None and s.first is not None
    row = w.b.to("i64")
    for head in w.fold.heads:
        row = row * k.lift(w.N[head.name]).to("i64") + w.heads[head.name].to("i64")
    row = row * k.lift(w.room[READER]).to("i64") + t.at.to("i64")
    row = row * k.lift(ceil_div(w.room[READ], sympy.Integer(8))).to("i64")
    eighth = k.iota("s", sympy.floor(w.BLOCK[READ] / 8)) + s.first // 8
    counter = k.apply("add", row, eighth.to("i64"), dims_in=("t", "s"))
    return k.random(k.load(w.seed), counter, Dim("s", w.BLOCK[READ]))
