"""Pairs of rows of a chunk that decay along a dim, written into a tile program.

With G the running sums of log gates, a pair of a later row i and an earlier row j decays by
exp(G_i - G_j), and from a row r between them on by the product of

    left_i = exp(G_i - G_r)      right_j = exp(G_r - G_j)

so that sums over pairs are products of matrices, as soon as they share r. Neither factor may
overflow. Rows are the leaves of a binary tree: pairs that meet in a block of it, one in each half,
share the last row of its first half as r, and then both exponents are sums of the gates in between.
If gates in a block are moderate, *all* pairs of that block may share r: factors beyond 1 are small
enough. So the tree is gone down from the whole chunk, and only until gates are moderate:

    for half in C/2, C/4, ..., 1:         blocks of 2 half rows
        moderate = all |G_i - G_r| <= LIMIT
        pairs = in one block, and (moderate or in different halves)
        sums += those of these pairs
        if moderate: break

The first turn is the rule, and stands before the loop; the others are there for gates that forget
everything at once. A pair of a row with itself does not decay, and is added exactly.

source: blocks with exponents summed from their border: Yang et al., arXiv 2312.06635, sec. 4.3.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import sympy

from archc.tile.compose import Composer
from archc.tile.handle import Tile
from archc.tile.language import Dim

LIMIT, NARROW_LIMIT = 50.0, 4.0
"""How large an exponent may be of either sign, in the range of float32 and in that of float16:
numbers up to 1e16 (1e3) have room above it, and down to 1e-16 (1e-3) all their digits below."""


@dataclass(frozen=True)
class Decays:
    """What all pairs of a chunk share: how rows decay, and in what products are made.

    `sums` [row, dim] are running sums of log gates, in a dtype whose differences are right; none of
    them is infinite. `before`: those at the row before, where a pair decays by the gates between
    its rows alone ("exclusive"). `at` reads sums at rows [row] from memory (None: from `sums`).
    `moderate`: gates are known to be, and there is no loop. `operand` is the dtype of operands of
    products, `precision` how exact they are in float32.
    """

    k: Composer
    sums: Tile
    row: str
    col: str
    operand: str = "f32"
    precision: str = "ieee"
    before: Tile | None = None
    at: Callable[[Tile], Tile] | None = None
    moderate: bool = False

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


@dataclass(frozen=True)
class Product:
    """A Gram: of later rows `a` and earlier rows `b`, both [row, dim]. `own`: a row is paired with
    itself too."""

    a: Tile
    b: Tile
    own: bool = False


@dataclass(frozen=True)
class Weighed:
    """Pairs with weights [row, col], and the names of the sums that are made of them:

        to_later[i]   = sum over j of weights[i, j] exp(span[i, j]) b[j]                  (Mix)
        to_earlier[j] = sum over i of weights[i, j] exp(span[i, j]) a[i]       (Mix, transposed)
        to_gates[r]   = sum over pairs around r of a[i] weights[i, j] exp(span[i, j]) b[j]

    Sums of one name are added up; "" is not wanted. `own`: a row is paired with itself too."""

    weights: Tile
    a: Tile | None = None
    b: Tile | None = None
    to_later: str = ""
    to_earlier: str = ""
    to_gates: str = ""
    own: bool = False

    @property
    def wanted(self) -> tuple[str, ...]:
        """The sums that it has a share of."""
        return tuple(filter(None, (self.to_later, self.to_earlier, self.to_gates)))


# --- what is wanted of pairs --------------------------------------------------------------------


def grams(d: Decays, products: Sequence[Product], start: Sequence[Tile] = ()) -> tuple[Tile, ...]:
    """Sums of A[i, j] = sum over dim of a[i] exp(span[i, j]) b[j], which `gram` makes matrices of:
    two tiles for each product, [row, col], which has any numbers where j >= i, and [row], for pairs
    of a row with itself. `start` are such tiles of another part of the dim, to which these are
    added. source: `Gram` of archc/ir/chunk.py."""
    k, count = d.k, len(products)
    given = start or (
        *(k.full(0.0, d.rows, Dim(d.col, d.rows.length)) for _ in products),
        *(k.full(0.0, d.rows) for _ in products),
    )

    def add(level: Level, sums: tuple[Tile, ...]) -> tuple[Tile, ...]:
        made = []
        for each, total in zip(products, sums, strict=True):
            a, b = _near(d, each.a, level.left), _near(d, each.b, level.right)
            b = b.along(**{d.row: d.col})
            if level.pairs is None:
                made.append(a.dot(b, total, precision=d.precision))
            else:
                product = a.dot(b, precision=d.precision)
                made.append(total + k.where(level.pairs, product, 0.0))
        return tuple(made)

    own = (
        total + (each.a * each.b).sum(d.dim.name) if each.own else total
        for each, total in zip(products, given[count:], strict=True)
    )
    return (*_by_levels(d, "gram", add, given[:count]), *own)


def gram(d: Decays, below: Tile, own: Tile) -> Tile:
    """The matrix [row, col] of one product of `grams`: 0 where there is no pair."""
    i = d.k.iota(d.row, d.rows.length)
    j = i.along(**{d.row: d.col})
    return d.k.where(i > j, below, d.k.where(i.equals(j), own, 0.0))


def mixes(d: Decays, pairs: Sequence[Weighed]) -> dict[str, Tile]:
    """Sums over weighed pairs by name, each [row, dim]: `Weighed` says which. All are made in one
    pass. source: `Mix` and `GateGradient` of archc/ir/chunk.py.

    Gates between two rows get what the pair adds: it enters at the later row and leaves at the
    earlier one, in the same digits, and is summed from the last row on."""
    k = d.k
    names = [*dict.fromkeys(name for each in pairs for name in each.wanted)]
    kept = [f"{each.to_gates} own" for each in pairs if each.to_gates and d.exclusive]
    names += dict.fromkeys(kept)

    def add(level: Level, given: tuple[Tile, ...]) -> tuple[Tile, ...]:
        sums = dict(zip(names, given, strict=True))
        for each in pairs:
            _add_pairs(d, level, each, sums)
        return tuple(sums[name] for name in names)

    zeros = [k.full(0.0, d.rows, d.dim) for _ in names]
    found = dict(zip(names, _by_levels(d, "mix", add, zeros), strict=True))
    for each in pairs:
        if each.own:
            _add_own(d, each, found)
    for name in dict.fromkeys(each.to_gates for each in pairs if each.to_gates):
        found[name] = found[name].scan("sum", d.row, reverse=True)
        if d.exclusive:
            found[name] = found[name] - found.pop(f"{name} own")
    return found


# --- levels of the tree -------------------------------------------------------------------------


@dataclass(frozen=True)
class Level:
    """Factors [row, dim] of later and of earlier rows, and the pairs [row, col] that they are for;
    None: all of them, of a later row with an earlier one."""

    left: Tile
    right: Tile
    pairs: Tile | None = None


Add = Callable[[Level, tuple[Tile, ...]], tuple[Tile, ...]]
"""Sums with the pairs of a level added to them."""


def _by_levels(d: Decays, name: str, add: Add, sums: Sequence[Tile]) -> tuple[Tile, ...]:
    """Sums over all pairs: at once where gates are moderate, else down the tree."""
    k = d.k
    half = k.lift(d.rows.length, "i32") // 2
    down, up = _exponents(d, _at_one(d, half - 1))
    if d.moderate:
        return add(Level(k.apply("exp", down), k.apply("exp", up)), tuple(sums))
    with k.branch(_is_moderate(d, down, up)) as moderate:
        easy = Level(k.apply("exp", down).named("left"), k.apply("exp", up).named("right"))
        moderate.give(*add(easy, tuple(sums)))
    with k.otherwise(moderate) as hard:
        hard.give(*_down_the_tree(d, name, add, half, sums))
    return moderate.results


def _down_the_tree(
    d: Decays, name: str, add: Add, half: Tile, sums: Sequence[Tile]
) -> tuple[Tile, ...]:
    """The loop over the levels. A quarter of the rows is as many turns as 16 rows have levels, and
    more than those of a longer chunk: once gates are moderate, a turn is empty."""
    k = d.k
    start = half.named("half"), *sums
    with k.loop(0, sympy.floor(d.rows.length / 4), *start, index="level") as turn:
        half, *rest = turn.carried
        with k.branch((half > 0).named("going")) as going:
            down, up = _exponents(d, _at_each(d, half))
            moderate = _is_moderate(d, down, up)
            level = _level(d, half, down, up, moderate)
            made = add(level, tuple(each.named(name) for each in rest))
            going.give(k.where(moderate, 0, half // 2), *made)
        with k.otherwise(going) as done:
            done.give(*turn.carried)
        turn.next(*going.results)
    return turn.results[1:]


def _at_one(d: Decays, row: Tile) -> Tile:
    """The sums at one row, [dim]."""
    if d.at is not None:
        return d.at(row).named("middle")
    here = d.k.iota(d.row, d.rows.length).equals(row)
    zero = d.k.full(0.0).to(d.sums.dtype)
    return d.k.where(here, d.sums, zero).sum(d.row).named("middle")


def _at_each(d: Decays, half: Tile) -> Tile:
    """The sums at the last row of the first half of each row's block, [row, dim]."""
    k, count = d.k, d.rows.length
    border = (k.iota(d.row, count) // half // 2 * 2 + 1) * half - 1
    border = k.apply("max", k.apply("min", border, k.lift(count, "i32") - 1), 0).named("border")
    if d.at is not None:
        return d.at(border).ordered(*d.sums.value.type.names).named("there")
    return d.sums.pick(border.over(*d.sums.dims), d.row).named("there")


def _exponents(d: Decays, there: Tile) -> tuple[Tile, Tile]:
    """G_i - G_r and G_r - G_j, for sums G_r at the rows that blocks share."""
    before = d.sums if d.before is None else d.before
    return (before - there).to("f32"), (there - d.sums).to("f32")


def _is_moderate(d: Decays, down: Tile, up: Tile) -> Tile:
    """Whether no factor of any row would grow too large."""
    k = d.k
    size = k.apply("abs", up)
    size = k.apply("max", k.apply("abs", down), size) if d.exclusive else size
    limit: Tile | float = LIMIT
    if d.operand == "f16":
        limit = NARROW_LIMIT
    elif d.operand not in ("bf16", "f32", "f64"):
        limit = k.where(k.chosen(d.operand, "f16"), NARROW_LIMIT, LIMIT)
    return (size.max(d.dim.name).max(d.row) <= limit).named("moderate")


def _level(d: Decays, half: Tile, down: Tile, up: Tile, moderate: Tile) -> Level:
    """Factors and pairs of blocks of two halves: a row may be the later one of a pair if it is in
    the second half, or anywhere where gates are moderate. A factor that no pair reads is 1."""
    k, names = d.k, {d.row: d.col}
    i = k.iota(d.row, d.rows.length)
    piece = i // half
    which, split = piece % 2, k.where(moderate, 0, 1).named("split")
    later, earlier = (which >= split).named("later"), (which + split <= 1).named("earlier")
    left = k.apply("exp", k.where(later, down, 0.0)).named("left")
    right = k.apply("exp", k.where(earlier, up, 0.0)).named("right")
    block = (piece // 2).named("block")
    below = (i > i.along(**names)) & later & earlier.along(**names)
    pairs = block.equals(block.along(**names)) & below
    return Level(left, right, pairs.named("pairs"))


def _near(d: Decays, x: Tile, factor: Tile) -> Tile:
    """Rows as they are at the shared row, in the dtype of products."""
    return (x * factor).to(d.operand)


def _add_pairs(d: Decays, level: Level, each: Weighed, sums: dict[str, Tile]) -> None:
    """Add the pairs of a level to the sums."""
    names, i = {d.row: d.col}, d.k.iota(d.row, d.rows.length)
    pairs = i > i.along(**names) if level.pairs is None else level.pairs
    weights = d.k.where(pairs, each.weights, 0.0).to(d.operand)
    shares: list[Tile] = []
    if each.b is not None and (each.to_later or each.to_gates):
        b = _near(d, each.b, level.right)
        seen = weights.dot(b.along(**names), precision=d.precision)
        if each.to_later:
            sums[each.to_later] = sums[each.to_later] + seen * level.left
        if each.to_gates and each.a is not None:
            shares.append(_near(d, each.a, level.left).to("f32") * seen)
    if each.a is not None and (each.to_earlier or each.to_gates):
        a = _near(d, each.a, level.left)
        seen = weights.dot(a, precision=d.precision).along(**{d.col: d.row})
        if each.to_earlier:
            sums[each.to_earlier] = sums[each.to_earlier] + seen * level.right
        if each.to_gates and each.b is not None:
            shares.append(_near(d, each.b, level.right).to("f32") * seen)
    if each.to_gates:
        into, out_of = shares
        sums[each.to_gates] = sums[each.to_gates] + into - out_of
        if d.exclusive:
            sums[f"{each.to_gates} own"] = sums[f"{each.to_gates} own"] + into


# --- pairs of a row with itself -----------------------------------------------------------------


def _add_own(d: Decays, each: Weighed, sums: dict[str, Tile]) -> None:
    """Add what rows are to themselves; no gate is between them."""
    i = d.k.iota(d.row, d.rows.length)
    diagonal = i.equals(i.along(**{d.row: d.col}))
    own = d.k.where(diagonal, each.weights, 0.0).sum(d.col)
    if each.to_later and each.b is not None:
        sums[each.to_later] = sums[each.to_later] + own * each.b
    if each.to_earlier and each.a is not None:
        sums[each.to_earlier] = sums[each.to_earlier] + own * each.a
