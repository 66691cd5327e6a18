"""Unit lower triangular systems of the rows of a chunk, written into a tile program.

A [row, col] is 0 on the diagonal and above, and its C rows are blocks of 16. In a block each row of
the inverse is made from those before it, in all blocks at once ("forward substitution"):

    X[r] = e[r] + sum over c < r of A[r, c] X[c]

in float32, whatever products of matrices are made in. Then the inverses X and Y of two neighbours,
and B, which stands below the first one, make that of a block of twice the rows:

    [X 0]
    [Y B X  Y]

source: blocked substitution: Golub and Van Loan, Matrix Computations, sec. 3.1.
"""

from __future__ import annotations

from dataclasses import dataclass

import sympy

from archc.tile.compose import Composer
from archc.tile.handle import Tile
from archc.tile.language import Dim

BLOCK = 16
"""Rows of a block: the least that products of matrices are made of."""

LARGEST = 1024.0
"""What float16 has room for when an inverse is multiplied by it once more. Beyond it the products
are made again in tf32, which has the same digits and the range of float32."""

MIDDLE = "middle"
"""The dim that a product of two matrices [row, col] sums over."""


@dataclass(frozen=True)
class Triangle:
    """A matrix that is 0 on the diagonal and above, and the names of its dims."""

    k: Composer
    A: Tile
    row: str
    col: str

    @property
    def length(self) -> sympy.Expr:
        """How many rows there are."""
        return self.A.dim(self.row).length

    @property
    def split(self) -> tuple[Dim, Dim, Dim, Dim]:
        """Rows as blocks and rows of these, and columns too."""
        count = sympy.floor(self.length / BLOCK)
        inner = Dim(f"{self.row}_in", sympy.Integer(BLOCK))
        columns = Dim(f"{self.col}_in", sympy.Integer(BLOCK))
        return Dim(f"{self.row}_block", count), inner, Dim(f"{self.col}_block", count), columns


def inverse(
    k: Composer, A: Tile, row: str, col: str, operand: str = "f32", precision: str = "ieee"
) -> Tile:
    """(I - A)^-1 [row, col]. Products between blocks have operands in `operand` (f32, f16, or a
    constant of the program that is one of them at launch), those in float32 are as exact as
    `precision`. source: `Inverse` of archc/ir/chunk.py."""
    given = Triangle(k, A.ordered(row, col), row, col)
    blocks = _spread(given, _of_blocks(given))
    made = _grown(given, blocks, operand, precision)
    if operand != "f32":
        outside = k.where(k.apply("abs", made) < LARGEST, 0.0, 1.0).max(col).max(row) > 0.0
        with k.branch(outside.named("outside")) as beyond:
            beyond.give(_grown(given, blocks, "f32", "tf32"))
        with k.otherwise(beyond) as within:
            within.give(made)
        (made,) = beyond.results
    return made.named("inverse", "(I - A)^-1")


def solved(k: Composer, A: Tile, x: Tile, row: str, col: str, precision: str = "ieee") -> Tile:
    """(I - A)^-1 x for x [row, dim], where the inverse itself is not wanted. With D the inverses of
    the blocks and L what stands below these, M = D L, it is ... (I + M^4) (I + M^2) (I + M) D x."""
    given = Triangle(k, A.ordered(row, col), row, col)
    (dim,) = (each for each in x.dims if each.name != row)
    block, _, _, columns = given.split
    found, length = _of_blocks(given), given.length
    i = k.iota(row, length) // BLOCK
    below = k.where(i > i.along(**{row: col}), given.A, 0.0)

    def in_blocks(y: Tile) -> Tile:
        """The inverse of each block times its rows of a matrix."""
        made = found.dot(y.shaped(block, columns, y.dims[1]), precision=precision)
        return made.shaped(Dim(row, length), y.dims[1])

    def times(M: Tile, y: Tile) -> Tile:
        return M.dot(y.along(**{row: col}), precision=precision)

    y = in_blocks(x.ordered(row, dim.name).to("f32")).named("in_blocks")
    M = in_blocks(below.to("f32")).named("M")
    with k.loop(0, sympy.floor(length / (4 * BLOCK)), M, y + times(M, y), index="level") as turn:
        M, y = turn.carried
        M = M.along(**{col: MIDDLE}).dot(M.along(**{row: MIDDLE}), precision=precision)
        turn.next(M, y + times(M, y))
    return turn.results[1].named("solved", "(I - A)^-1 x")


# --- blocks of 16 rows --------------------------------------------------------------------------


def _own_blocks(t: Triangle, x: Tile) -> Tile:
    """The blocks of a matrix on its diagonal, [block, row, col]."""
    block, inner, other, columns = t.split
    same = t.k.iota(block.name, block.length).equals(t.k.iota(other.name, other.length))
    return t.k.where(same, x.shaped(block, inner, other, columns), 0.0).sum(other.name)


def _of_blocks(t: Triangle) -> Tile:
    """The inverses of the blocks, row after row."""
    k, (block, inner, _, columns) = t.k, t.split
    A = _own_blocks(t, t.A).to("f32").named("blocks")
    i = k.iota(inner.name, inner.length)
    unit = k.where(i.equals(k.iota(columns.name, columns.length)), 1.0, 0.0)
    unit = unit.over(block, inner, columns).named("of_blocks")
    with k.loop(1, BLOCK, unit, index="r") as turn:
        (made,) = turn.carried
        here = i.equals(turn.index)
        weights = k.where(here, A, 0.0).sum(inner.name).along(**{columns.name: inner.name})
        turn.next(made + k.where(here, (weights * made).sum(inner.name), 0.0))
    return turn.results[0]


def _spread(t: Triangle, blocks: Tile) -> Tile:
    """A matrix [row, col] of blocks on its diagonal."""
    k, (block, _, other, _) = t.k, t.split
    same = k.iota(block.name, block.length).equals(k.iota(other.name, other.length))
    wide = k.where(same, blocks, 0.0).ordered(*(dim.name for dim in t.split))
    return wide.shaped(*t.A.dims)


def _grown(t: Triangle, made: Tile, operand: str, precision: str) -> Tile:
    """Inverses of blocks of 32 rows, of 64, ... from those of 16 on the diagonal."""
    k, names = t.k, {t.row: t.col}
    start = k.lift(BLOCK, "i32").named("half"), made.named("made")
    turns = sympy.floor(t.length / (2 * BLOCK))  # of 128 rows one more than needed, which adds 0
    with k.loop(0, turns, *start, index="level") as turn:
        half, made = turn.carried
        piece = k.iota(t.row, t.length) // half
        first = piece % 2 < 1
        meet = (piece // 2).equals((piece // 2).along(**names)) & ~first & first.along(**names)
        near = made.to(operand)
        below = k.where(meet, t.A, 0.0).to(operand).along(**{t.row: MIDDLE})
        moved = near.along(**{t.col: MIDDLE}).dot(below, precision=precision).to(operand)
        onto = near.along(**{t.row: MIDDLE})
        turn.next(2 * half, moved.along(**{t.col: MIDDLE}).dot(onto, made, precision=precision))
    return turn.results[1]
