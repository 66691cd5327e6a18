"""How rows of a chunk decay along a dim: sums of log gates, and exponents from a row on.

Sums are read from memory at other rows where they lie there. Where they are made here, of gates in
bfloat16, exponents are products of these with ones, which are exact.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from archc.ir.chunk import NEAREST, NEAREST_NARROW
from archc.tile.compose import Composer, Length
from archc.tile.handle import Tile
from archc.tile.language import Dim

LIMIT, NARROW_LIMIT = float(NEAREST), float(NEAREST_NARROW)
"""How large an exponent may be. Gates as layers begin with (a channel forgets at most exp(-1.6) a
token) stay below it in chunks of 64 tokens."""


def as_hard(hard: Tile) -> Tile:
    """Gates take the tree where they are hard."""
    return hard


@dataclass(frozen=True)
class Decays:
    """The common part of all pairs of a chunk: how rows decay, and the dtype of products.

    `sums` [row, dim] are running sums of log gates, in a dtype whose differences are right; none of
    them is infinite. `before`: those at the row before, where a pair decays by the gates between
    its rows alone ("exclusive"). `at` reads sums at some rows from memory, at [row] or at one
    (None: from `sums`). `levels`: how often rows can be halved. `operand` is the dtype of
    operands of products, `precision` how exact they are in float32. `takes_tree`: whether the tree
    is taken here, of whether gates are hard. `gates` [row, dim] are the log gates themselves, where
    sums of them are made here, and whether products of these in bfloat16 are exact.
    """

    k: Composer
    sums: Tile
    row: str
    col: str
    levels: Length
    operand: str = "f32"
    precision: str = "ieee"
    before: Tile | None = None
    at: Callable[[Tile], Tile] | None = None
    takes_tree: Callable[[Tile], Tile] = as_hard
    gates: tuple[Tile, Tile] | None = None

    @property
    def rows(self) -> Dim:
        """The dim of the rows."""
        return self.sums.dim(self.row)

    @property
    def dim(self) -> Dim:
        """The dim along which rows decay."""
        (found,) = (dim for dim in self.sums.dims if dim.name != self.row)
        return found

    @property
    def exclusive(self) -> bool:
        """Whether a pair decays by the gates between its rows alone."""
        return self.before is not None


def to_border(d: Decays, half: Tile, later: Tile) -> Tile:
    """The log decay between each row and the border of its block, [row, dim]."""
    k = d.k

    def rounded() -> Tile:
        there = _at_each(d, half)
        before = d.sums if d.before is None else d.before
        return k.where(later, before - there, there - d.sums).hinted("exponent").to("f32")

    if d.gates is None:
        return rounded()
    (gates, exact), border = d.gates, _borders(d, half)
    with k.branch(exact) as by_products:
        by_products.give(_summed_between(d, gates, border))
    with k.otherwise(by_products) as by_sums:
        by_sums.give(rounded())
    return by_products.results[0]


def _summed_between(d: Decays, gates: Tile, border: Tile) -> Tile:
    """The sums of gates between each row and the border of its block, by a product with ones, which
    is exact: sums at other rows go from thread to thread one by one."""
    k, names = d.k, {d.row: f"{d.row}'"}
    i = k.iota(d.row, d.rows.length)
    first, last = k.apply("min", i, border), k.apply("max", i, border)
    j = i.along(**names)
    between = k.where((first < j) & (last >= j), 1.0, 0.0).to("bf16")
    return between.dot(gates.to("bf16").along(**names)).named("exponent")


def from_borders(d: Decays, half: Tile) -> tuple[Tile, Tile, Tile]:
    """G_i - G_r and G_r - G_j, for the rows r at the borders of blocks, and the larger size."""
    k = d.k
    if d.gates is None:
        down, up = exponents(d, _at_each(d, half))
        return down, up, k.apply("max", k.apply("abs", down), k.apply("abs", up))
    later = (k.iota(d.row, d.rows.length) // half % 2).equals(1)
    exponent = to_border(d, half, later)
    down = k.where(later, exponent, -exponent).hinted("down")
    return down, -down, -exponent


def at_one(d: Decays, row: Tile) -> Tile:
    """The sums at one row, [dim]."""
    if d.at is not None:
        return d.at(row).named("middle")
    here = d.k.iota(d.row, d.rows.length).equals(row)
    zero = d.k.full(0.0).to(d.sums.dtype)
    return d.k.where(here, d.sums, zero).sum(d.row).named("middle")


def _at_each(d: Decays, half: Tile) -> Tile:
    """The sums at the last row of the first half of each row's block, [row, dim]."""
    border = _borders(d, half)
    if d.at is not None:
        return d.at(border).ordered(*d.sums.value.type.names).named("there")
    return d.sums.pick(border.over(*d.sums.dims), d.row).named("there")


def _borders(d: Decays, half: Tile) -> Tile:
    """The last row of the first half of each row's block, [row]."""
    k, count = d.k, d.rows.length
    border = (k.iota(d.row, count) // half // 2 * 2 + 1) * half - 1
    return k.apply("max", k.apply("min", border, k.lift(count - 1, "i32")), 0).named("border")


def exponents(d: Decays, there: Tile) -> tuple[Tile, Tile]:
    """G_i - G_r and G_r - G_j, for sums G_r at the rows that blocks share."""
    before = d.sums if d.before is None else d.before
    down, up = (before - there).hinted("down"), (there - d.sums).hinted("up")
    return down.to("f32"), up.to("f32")


def limit(d: Decays) -> Tile | float:
    """How large an exponent may be, in the range of the operands of products."""
    return limit_of(d.operand, d.k)


def limit_of(operand: str, k: Composer) -> Tile | float:
    """The same for a dtype."""
    if operand == "f16":
        return NARROW_LIMIT
    if operand in ("bf16", "f32", "f64"):
        return LIMIT
    made = k.where(k.chosen(operand, "f16"), NARROW_LIMIT, LIMIT).hinted("limit")
    return k.noted(made, f"exp of no more than this, of either sign, has room in {operand}")
