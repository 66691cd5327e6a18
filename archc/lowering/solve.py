"""Unit lower triangular systems of the rows of a chunk, written into a tile program.

A [row, col] is 0 on the diagonal and above. The inverses X and Y of two blocks of rows, and B,
which stands below the first one, make that of a block of twice the rows:

    (I - [A 0])^-1 = [X      0]
    (    [B D])      [Y B X  Y]     with X = (I - A)^-1, Y = (I - D)^-1

Blocks of two rows need no product. Blocks of up to 16 rows are taken out of the diagonal, or read
from memory by themselves, and are small products, all of them at once; longer ones are products of
the whole matrix, in which all blocks but those are 0.

source: blocked inversion: Golub and Van Loan, Matrix Computations, sec. 3.1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import sympy

from archc.tile.compose import Composer
from archc.tile.handle import Tile
from archc.tile.language import Dim

BLOCK = 16
"""Rows of a small block: the least that products of matrices are made of."""

LARGEST = 1024.0
"""The largest entry of an inverse that float16 has room for when it is multiplied by it once more.
Beyond it the products are made again in tf32, which has the same digits and the range of
float32."""

BLOCKS = "block"
"""The dim of such blocks."""

MIDDLE = "middle"
"""The dim that a product of two matrices [row, col] sums over."""


@dataclass(frozen=True)
class Triangle:
    """A matrix that is 0 on the diagonal and above, and the names of its dims; its blocks on the
    diagonal, if they are at hand."""

    k: Composer
    A: Tile
    row: str
    col: str
    blocks: Tile | None = None

    @property
    def length(self) -> sympy.Expr:
        """The number of rows."""
        return self.A.dim(self.row).length

    @property
    def split(self) -> tuple[Dim, Dim, Dim, Dim]:
        """Rows as blocks and rows of these, and columns too."""
        block, inner = blocks_of(self.row, self.length)
        other, columns = blocks_of(self.col, self.length)
        return block, inner, replace(other, name=f"{self.col}_block"), columns


def blocks_of(name: str, length: sympy.Expr) -> tuple[Dim, Dim]:
    """Rows, or columns, as blocks and rows of these."""
    count, inner = sympy.floor(length / BLOCK), Dim(f"{name}_in", sympy.Integer(BLOCK))
    return Dim(BLOCKS, count), inner


def inverse(
    given: Triangle,
    operand: str = "f32",
    precision: str = "ieee",
    again: Callable[[Tile], Tile] | None = None,
) -> Tile:
    """(I - A)^-1 [row, col]. Products have operands in `operand` (f32, f16, or a constant of the
    program that is one of them at launch), those in float32 are as exact as `precision`. `again`:
    of a matrix that the program makes once more where that is not enough, whether it does, of
    whether that is so; the first time it then makes nothing in float32, which has registers of its
    own. source: `Inverse` of archc/ir/chunk.py."""
    k = given.k
    given = replace(given, A=given.A.ordered(given.row, given.col))
    made = _inverse(given, operand, precision)
    if operand != "f32":
        outside = grown(k, made, operand)
        if again is None:
            made = _within(given, made, outside)
        else:
            with k.branch(again(outside)) as last:
                last.give(_within(given, made, outside))
            with k.otherwise(last) as once:
                once.give(made)
            (made,) = last.results
    return made.named("inverse", "(I - A)^-1")


def _within(given: Triangle, made: Tile, outside: Tile) -> Tile:
    """An inverse, made once more in tf32 where it has no room in float16."""
    with given.k.branch(outside) as beyond:
        beyond.give(_inverse(given, "f32", "tf32"))
    with given.k.otherwise(beyond) as within:
        within.give(made)
    return beyond.results[0]


def grown(k: Composer, made: Tile, operand: str) -> Tile:
    """Whether an inverse has entries whose squares have no room in float16, where that is what
    operands are in. It is one sum: on a sum of sums Triton 3.6 fails for sm_100."""
    row, col = made.dims
    every = Dim("every", row.length * col.length)
    found = k.where(k.apply("abs", made) < LARGEST, 0, 1).shaped(every).sum("every") > 0
    found = found if operand == "f16" else found & k.chosen(operand, "f16")
    return found.named("outside", f"beyond {LARGEST:.0f} squares have no room in f16")


def _inverse(t: Triangle, operand: str, precision: str) -> Tile:
    """The inverse, block by block."""
    k = t.k
    block, inner, other, columns = t.split
    blocks = _own_blocks(t, t.A).to("f32") if t.blocks is None else t.blocks
    small = Halves(k, blocks, inner, columns, operand, precision)
    made = small.first()
    for half in (2, 4, 8):
        made = small.doubled(made, k.lift(half, "i32"))
    same = k.iota(block.name, block.length).equals(k.iota(other.name, other.length))
    wide = k.where(same, made, 0.0).ordered(*(dim.name for dim in t.split)).shaped(*t.A.dims)
    row, col = t.A.dims
    whole = Halves(k, t.A, row, col, operand, precision)
    start = k.lift(BLOCK, "i32").named("half"), wide.named("made")
    turns = sympy.floor(t.length / (2 * BLOCK))  # of 128 rows one more than needed, which adds 0
    with k.loop(0, turns, *start, index="level") as turn:
        half, made = turn.carried
        turn.next(2 * half, whole.doubled(made, half))
    return turn.results[1]


@dataclass(frozen=True)
class Halves:
    """A matrix [row, col], or a batch of them, whose blocks on the diagonal are inverted, each from
    its halves."""

    k: Composer
    A: Tile
    row: Dim
    col: Dim
    operand: str
    precision: str

    def below(self, half: Tile | None = None) -> Tile:
        """The off-diagonal block below the first half of each block, of one row each if no `half`
        is given, and 0 elsewhere."""
        i, j = (self.k.iota(d.name, d.length) for d in (self.row, self.col))
        if half is not None:
            i, j = ((each // half).hinted("piece") for each in (i, j))
        meet = (i // 2).equals(j // 2) & (i % 2 > j % 2)
        return self.k.where(meet.named("meet"), self.A, 0.0).hinted("below")

    def first(self) -> Tile:
        """The inverses of blocks of two rows."""
        i, j = (self.k.iota(d.name, d.length) for d in (self.row, self.col))
        return self.k.where(i.equals(j), 1.0, self.below())

    def doubled(self, made: Tile, half: Tile) -> Tile:
        """Those of blocks of twice the rows."""
        row, col = self.row.name, self.col.name
        near, below = made.to(self.operand), self.below(half).to(self.operand)
        moved = near.along(**{col: MIDDLE}).dot(
            below.along(**{row: MIDDLE}), precision=self.precision
        )
        moved.hinted("moved")
        left, right = moved.to(self.operand).along(**{col: MIDDLE}), near.along(**{row: MIDDLE})
        return left.dot(right, made, precision=self.precision)


def _own_blocks(t: Triangle, x: Tile) -> Tile:
    """The blocks of 16 rows on the diagonal of a matrix, [block, row, col]."""
    block, inner, other, columns = t.split
    same = t.k.iota(block.name, block.length).equals(t.k.iota(other.name, other.length))
    return t.k.where(same, x.shaped(block, inner, other, columns), 0.0).sum(other.name)
