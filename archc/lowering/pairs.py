"""Pairs of rows of a chunk that decay along a dim, written into a tile program.

With G the running sums of log gates, a pair of a later row i and an earlier row j decays by
exp(G_i - G_j), and from a row r between them on by the product of

    left_i = exp(G_i - G_r)      right_j = exp(G_r - G_j)

so that sums over pairs are products of matrices, as soon as they share r. Neither factor may
overflow. If gates are moderate, all pairs of the chunk share its middle row: no exponent is beyond
LIMIT, which is the rule. Else rows are the leaves of a binary tree: pairs that meet in a block of
it, one in each half, share the last row of its first half, and both exponents are sums of gates in
between, so that no factor is beyond 1:

    if gates are moderate in the chunk:
        all pairs
    else:
        all pairs of blocks of 16 rows         if gates are moderate in these
        for half in 1, 2, 4, ..., C/2:         blocks of 2 half rows, pairs of different halves;
                                               from 16 on if blocks of 16 rows are done
A pair of a row with itself does not decay: Grams add it exactly, Mixes have none
(`archc/schedule/joint_pairs.py`).

source: blocks with exponents summed from their border: Yang et al., arXiv 2312.06635, sec. 4.3.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import sympy

from archc.ir.chunk import FAR
from archc.lowering.row_decays import (
    Decays,
    as_hard,
    at_one,
    exponents,
    from_borders,
    limit,
    limit_of,
    to_border,
)
from archc.tile.compose import Composer, Length, as_size
from archc.tile.handle import Tile
from archc.tile.language import Dim

Made = tuple[Decays, Sequence[tuple[Tile, Tile]]]
"""Decays along a part of the dim, and of each product its later rows and its earlier rows there,
each [row, dim]."""


@dataclass(frozen=True)
class Near:
    """Rows that stand as they are seen from the middle of the chunk: how many parts of the dim
    there are, what gives later and earlier rows of each product in one of these, [row, dim] in the
    dtype of products, and the middle of all dims, FAR where rows do not stand so."""

    parts: Length
    rows: Callable[[Tile], Sequence[tuple[Tile, Tile]]]
    middle: Tile


@dataclass(frozen=True)
class Products:
    """Grams that share their decays: how many parts of the dim there are, one after the other, of
    moderate gates and of strong ones, what is made of one of these, and of each product whether a
    row is paired with itself too. `ends`: the sums at the middle row and at the last one, of all
    parts, that show at once that gates are too strong for the middle row; `takes_tree` as of
    Decays, `tree_alone` where that is known before. `near`: rows that are multiplied as they stand
    in chunks of moderate gates."""

    k: Composer
    rows: Dim
    col: Dim
    parts: tuple[Length, Length]
    make: Callable[[Tile, bool], Made]
    own: tuple[bool, ...]
    ends: tuple[Tile, Tile] | None = None
    operand: str = "f32"
    takes_tree: Callable[[Tile], Tile] = as_hard
    tree_alone: Tile | None = None
    near: Near | None = None
    precision: str = "ieee"


@dataclass(frozen=True)
class Weighed:
    """Pairs with weights [row, col], and the names of the sums that are made of them:

        to_later[i]   = sum over j of weights[i, j] exp(span[i, j]) b[j]                  (Mix)
        to_earlier[j] = sum over i of weights[i, j] exp(span[i, j]) a[i]       (Mix, transposed)
        entering[i]   = a[i] to_later[i]
        to_gates[i]   = entering[i] - b[i] to_earlier[i], as well                  (GateShares)
        across[r]     = sum of the pairs i >= r > j, nothing subtracted          (GateGradient)

    Sums of one name are added up; "" is not wanted. No row is paired with itself."""

    weights: Tile
    a: Tile | None = None
    b: Tile | None = None
    to_later: str = ""
    to_earlier: str = ""
    to_gates: str = ""
    entering: str = ""
    across: str = ""

    @property
    def wanted(self) -> tuple[str, ...]:
        """The sums that it has a share of."""
        every = (self.to_later, self.to_earlier, self.to_gates, self.entering, self.across)
        return tuple(filter(None, every))


# --- what is wanted of pairs --------------------------------------------------------------------


def grams(p: Products) -> tuple[Tile, ...]:
    """A[i, j] = sum over dim of a[i] exp(span[i, j]) b[j] for j < i (j <= i where a row is paired
    with itself), else 0: a matrix [row, col] for each product. source: `Gram` of
    archc/ir/chunk.py."""
    zeros = [p.k.full(0.0, p.rows, p.col)] * len(p.own)
    if p.near is not None:
        return _of_near_rows(p, p.near, zeros)
    if p.parts == (1, 1):
        d, products = p.make(p.k.lift(0, "i32"), False)
        add = _added(d, products)
        found = _either(d, add, lambda: add, zeros)
        return _below(p, found, _with_itself(d, products, p.own))
    return _below(p, *_part_by_part(p, zeros))


def _below(p: Products, sums: Sequence[Tile], itself: Sequence[Tile]) -> tuple[Tile, ...]:
    """Matrices of sums below the diagonal, and on it those of rows with themselves."""
    k, own = p.k, iter(itself)
    i, j = k.iota(p.rows.name, p.rows.length), k.iota(p.col.name, p.col.length)
    return tuple(
        k.where(i > j, below, k.where(i.equals(j), next(own), 0.0) if wanted else 0.0)
        for below, wanted in zip(sums, p.own, strict=True)
    )


def _of_near_rows(p: Products, near: Near, zeros: Sequence[Tile]) -> tuple[Tile, ...]:
    """Products of rows as they stand; of a chunk with others, by the tree."""
    k, parts = p.k, near.parts
    if p.tree_alone is not None:
        parts = k.where(p.tree_alone, 0, k.lift(parts, "i32"))
    i, j = k.iota(p.rows.name, p.rows.length), k.iota(p.col.name, p.col.length)
    with k.loop(0, parts, *zeros, index="part") as turn:
        rows = zip(near.rows(turn.index), turn.carried, strict=True)
        turn.next(
            *(a.dot(b, total, precision=p.precision).hinted("scores") for (a, b), total in rows)
        )
    hard = near.middle.max(near.middle.dims[0].name) >= FAR
    hard = hard.named("hard", f"{FAR}: some sums are far from their middle")
    with k.branch(p.takes_tree(hard)) as again:
        again.give(*_below(p, *_by_tree(p, zeros)))
    with k.otherwise(again) as easy:
        seen = zip(turn.results, p.own, strict=True)
        easy.give(*(k.where(i >= j if own else i > j, product, 0.0) for product, own in seen))
    return again.results


def _part_by_part(p: Products, zeros: Sequence[Tile]) -> tuple[tuple[Tile, ...], Sequence[Tile]]:
    """Sums below the diagonal over the parts of the dim, and those of rows with themselves. What is
    the rule is a loop of nothing else, whose loads go ahead; where some gates turn out not to be
    moderate, what it made is not taken, and where the ends show it, it is left out."""
    k, count, none = p.k, len(p.own), p.k.full(0.0, p.rows)
    parts, worst = p.parts[0], none
    if p.ends is not None:
        hard = _beyond(p.ends, p.operand, k).named("hard_ends")
        beyond = (2 * k.lift(limit_of(p.operand, k))).hinted("beyond")
        parts, worst = k.where(hard, 0, k.lift(parts, "i32")), k.where(hard, beyond, none)
    start = *zeros, *[none] * sum(p.own), worst.named("worst")
    if p.tree_alone is not None:
        parts = k.where(p.tree_alone, 0, k.lift(parts, "i32"))
    with k.loop(0, parts, *start, index="part") as turn:
        d, products = p.make(turn.index, False)
        level, size = _all_at_once(d)
        own = _with_itself(d, products, p.own)
        sums, itself, worst = turn.carried[:count], turn.carried[count:-1], turn.carried[-1]
        itself = tuple((x + y).hinted("itself") for x, y in zip(itself, own, strict=True))
        worst = k.apply("max", worst, size.max(d.dim.name)).hinted("worst")
        turn.next(*_added(d, products)(level, sums), *itself, worst)
    done = turn.results[:-1]
    hard = (turn.results[-1].max(p.rows.name) > limit(d)).named("hard")
    with k.branch(p.takes_tree(hard)) as again:
        sums, itself = _by_tree(p, zeros)
        again.give(*sums, *itself)
    with k.otherwise(again) as easy:
        easy.give(*done)
    return again.results[:count], again.results[count:]


def _by_tree(p: Products, zeros: Sequence[Tile]) -> tuple[tuple[Tile, ...], tuple[Tile, ...]]:
    """The same where gates are not moderate."""
    k, count, none = p.k, len(p.own), p.k.full(0.0, p.rows)
    start = *zeros, *[none] * sum(p.own)
    with k.loop(0, p.parts[1], *start, index="part") as turn:
        d, products = p.make(turn.index, True)
        own = _with_itself(d, products, p.own)
        both = zip(turn.carried[count:], own, strict=True)
        itself = tuple((x + y).hinted("itself") for x, y in both)
        add = _added(d, products)
        turn.next(*_safely(d, add, lambda: add, turn.carried[:count]), *itself)
    return turn.results[:count], turn.results[count:]


def _with_itself(
    d: Decays, products: Sequence[tuple[Tile, Tile]], own: Sequence[bool]
) -> tuple[Tile, ...]:
    """Of each product that pairs rows with themselves what they add."""
    paired = [pair for pair, wanted in zip(products, own, strict=True) if wanted]
    return tuple((a * b).sum(d.dim.name).hinted("own") for a, b in paired)


def _added(d: Decays, products: Sequence[tuple[Tile, Tile]]) -> Add:
    """Adds products of the pairs of a level; of one that is for all pairs, with any numbers where
    j >= i."""

    def add(level: Level, sums: Sequence[Tile]) -> tuple[Tile, ...]:
        made = []
        for (a, b), total in zip(products, sums, strict=True):
            left, right = _near(d, a, level.left), _near(d, b, level.right).along(**{d.row: d.col})
            if level.pairs is None:
                made.append(left.dot(right, total, precision=d.precision).hinted("scores"))
            else:
                product = left.dot(right, precision=d.precision)
                made.append((total + d.k.where(level.pairs, product, 0.0)).hinted("scores"))
        return tuple(made)

    return add


def mixes(d: Decays, pairs: Sequence[Weighed]) -> dict[str, Tile]:
    """Sums over weighed pairs by name, each [row, dim]: `Weighed` says which. All are made in one
    pass. source: `Mix` and `GateShares` of archc/ir/chunk.py.

    What a pair adds to the gates between its rows enters and leaves in the same digits."""
    names = [*dict.fromkeys(name for each in pairs for name in each.wanted)]

    def at_once(level: Level, given: Sequence[Tile]) -> Tiles:
        sums = dict(zip(names, given, strict=False))
        for group in _sharing(pairs, later=True):
            _add_later(d, level, group, sums)
        for group in _sharing(pairs, later=False):
            _add_earlier(d, level, group, sums)
        return tuple(sums[name] for name in names)

    def halves() -> Add:
        both = [_both_ways(d, each) for each in pairs]

        def add(level: Level, given: Sequence[Tile]) -> Tiles:
            sums = dict(zip(names, given, strict=True))
            for matrix, each in zip(both, pairs, strict=True):
                _add_halves(d, level, each, matrix, sums)
            return tuple(sums[name] for name in names)

        return add

    if any(each.across for each in pairs):
        zeros = [d.k.full(0.0, d.rows, d.dim)] * len(names)
        return dict(zip(names, _by_levels(d, halves(), zeros), strict=True))
    return dict(zip(names, _either(d, at_once, halves, ()), strict=True))


def _by_levels(d: Decays, add: Add, sums: Sequence[Tile]) -> Tiles:
    """Sums over all pairs, level by level from rows side by side on."""
    start = d.k.lift(1, "i32").named("half"), *sums
    with d.k.loop(0, d.k.lift(d.levels, "i32"), *start, index="level") as turn:
        half, *rest = turn.carried
        turn.next(half * 2, *add(_halves(d, half), rest))
    return turn.results[1:]


def _sharing(pairs: Sequence[Weighed], later: bool) -> list[list[Weighed]]:
    """Pairs whose products are added up: of the same later (earlier) rows, for the same sums."""
    found: dict[tuple[object, ...], list[Weighed]] = {}
    for each in pairs:
        x, wanted = (each.a, each.to_later) if later else (each.b, each.to_earlier)
        gates = (each.to_gates, each.entering if later else "")
        if wanted or any(gates):
            key = (x.value if x is not None else None, wanted, *gates)
            found.setdefault(key, []).append(each)
    return [*found.values()]


# --- levels of the tree -------------------------------------------------------------------------


@dataclass(frozen=True)
class Level:
    """Factors [row, dim] of later and of earlier rows, and the pairs [row, col] that they are for;
    None: all of them, of a later row with an earlier one. `later`: where a row is the later one of
    its pairs, if it is in all of them or in none; `either`: those pairs, in both orders; `half`:
    the rows of a half, where blocks have two."""

    left: Tile
    right: Tile
    pairs: Tile | None = None
    later: Tile | None = None
    either: Tile | None = None
    half: Tile | None = None


Tiles = tuple[Tile, ...]
Add = Callable[[Level, Sequence[Tile]], Tiles]
"""Sums with the pairs of a level added to them."""


def _either(d: Decays, at_once: Add, halves: Callable[[], Add], sums: Sequence[Tile]) -> Tiles:
    """Sums over all pairs, which share the middle row if gates are moderate."""
    level, size = _all_at_once(d)
    hard = (size.max(d.dim.name).max(d.row) > limit(d)).named("hard")
    with d.k.branch(d.takes_tree(hard)) as strong:
        strong.give(*_safely(d, at_once, halves, sums))
    with d.k.otherwise(strong) as moderate:
        moderate.give(*at_once(level, sums))
    return strong.results


def _beyond(ends: tuple[Tile, Tile], operand: str, k: Composer) -> Tile:
    """Whether the middle row is too far from the first one or from the last one."""
    middle, last = ends
    far = k.apply("max", k.apply("abs", middle), k.apply("abs", last - middle)).to("f32")
    return far.max(far.dims[0].name) > limit_of(operand, k)


def _all_at_once(d: Decays) -> tuple[Level, Tile]:
    """All pairs of a chunk, which share its middle row, and how large exponents are."""
    k = d.k
    down, up = exponents(d, at_one(d, k.lift(sympy.floor(d.rows.length / 2) - 1, "i32")))
    level = Level(k.apply("exp", down).named("left"), k.apply("exp", up).named("right"))
    size = k.apply("abs", up).hinted("size")
    return level, k.apply("max", k.apply("abs", down), size) if d.exclusive else size


def _safely(d: Decays, at_once: Add, halves: Callable[[], Add], sums: Sequence[Tile]) -> Tiles:
    """Sums over all pairs of which no exponent is beyond LIMIT: blocks of 16 rows at once, if gates
    are moderate there, and level by level."""
    k, names = d.k, {d.row: d.col}
    i = k.iota(d.row, d.rows.length)
    down, up, size = from_borders(d, k.lift(8, "i32"))
    moderate = (size.max(d.dim.name).max(d.row) <= limit(d)).named("moderate")
    block = k.where(moderate, i // 16, i).named("block")
    pairs = block.equals(block.along(**names)) & (i > i.along(**names))
    left, right = (k.apply("exp", k.where(moderate, x, 0.0)) for x in (down, up))
    left, right = left.hinted("left"), right.hinted("right")
    sums = at_once(Level(left, right, pairs.named("pairs")), sums)
    levels = k.lift(d.levels, "i32")
    few = k.apply("max", k.lift(as_size(d.levels) - 4, "i32"), 0)
    left_over = k.where(moderate, few, levels).named("levels")
    start = k.where(moderate, k.lift(16, "i32"), 1).named("half")
    by_halves = halves()
    with k.loop(0, left_over, start, *sums, index="level") as turn:
        half, *rest = turn.carried
        turn.next(half * 2, *by_halves(_halves(d, half), rest))
    return turn.results[1:]


def _halves(d: Decays, half: Tile) -> Level:
    """Blocks of two halves: pairs of a row in the second one and a row in the first one. Every row
    has one factor, as the later or as the earlier one."""
    k, names = d.k, {d.row: d.col}
    piece = k.iota(d.row, d.rows.length) // half
    later = (piece % 2).equals(1).named("later")
    decay = k.apply("exp", to_border(d, half, later)).named("decay")
    block = (piece // 2).named("block")
    here = k.where(later, block, -1).hinted("as_later")
    other = k.where(later, -2, block).hinted("as_earlier")
    pairs = here.equals(other.along(**names)).named("pairs")
    either = pairs | other.equals(here.along(**names))
    return Level(decay, decay, pairs, later, either.named("either"), half)


def _near(d: Decays, x: Tile, factor: Tile) -> Tile:
    """Rows as they are at the shared row, in the dtype of products."""
    return (x * factor).hinted("near").to(d.operand)


def _add_later(d: Decays, level: Level, group: Sequence[Weighed], sums: dict[str, Tile]) -> None:
    """Add what later rows have of the pairs of a level."""
    seen, first = None, group[0]
    for each in group:
        assert each.b is not None, "later rows have something of earlier ones"
        b = _near(d, each.b, level.right).along(**{d.row: d.col})
        seen = _weights(d, level, each).dot(b, seen, precision=d.precision).hinted("seen")
    assert seen is not None
    if first.to_later:
        _add(sums, first.to_later, seen * level.left, "to_later")
    if first.a is not None and (first.to_gates or first.entering):
        share = _near(d, first.a, level.left).to("f32") * seen
        _add(sums, first.to_gates, share, "to_gates")
        _add(sums, first.entering, share, "entering")


def _add_earlier(d: Decays, level: Level, group: Sequence[Weighed], sums: dict[str, Tile]) -> None:
    """Add what earlier rows have of the pairs of a level."""
    product, first = None, group[0]
    for each in group:
        assert each.a is not None, "earlier rows have something of later ones"
        a = _near(d, each.a, level.left)
        product = _weights(d, level, each).dot(a, product, precision=d.precision).hinted("seen")
    assert product is not None
    seen = product.along(**{d.col: d.row})
    if first.to_earlier:
        _add(sums, first.to_earlier, seen * level.right, "to_earlier")
    if first.b is not None and first.to_gates:
        share = _near(d, first.b, level.right).to("f32") * seen
        _add(sums, first.to_gates, -share, "to_gates")


def _weights(d: Decays, level: Level, each: Weighed) -> Tile:
    """The weights of the pairs of a level, in the dtype of products."""
    i = d.k.iota(d.row, d.rows.length)
    pairs = i > i.along(**{d.row: d.col}) if level.pairs is None else level.pairs
    return d.k.where(pairs, each.weights, 0.0).hinted("weights").to(d.operand)


def _add(sums: dict[str, Tile], name: str, share: Tile, label: str) -> None:
    """Add something to the sum of that name, if it is wanted, for readers under a `label`."""
    if name:
        sums[name] = (sums[name] + share if name in sums else share).hinted(label)


def _both_ways(d: Decays, each: Weighed) -> Tile:
    """The weights of pairs in both orders."""
    i = d.k.iota(d.row, d.rows.length)
    turned = each.weights.along(**{d.row: d.col, d.col: d.row}).ordered(d.row, d.col)
    both = d.k.where(i > i.along(**{d.row: d.col}), each.weights, turned)
    return both.hinted("both_ways").to(d.operand)


def _add_halves(d: Decays, level: Level, each: Weighed, both: Tile, sums: dict[str, Tile]) -> None:
    """Add the pairs of two halves to the sums: one product for later rows and for earlier ones."""
    assert level.later is not None and level.either is not None
    k, decay = d.k, level.left
    value = each.b if each.a is None else each.a
    if each.a is not None and each.b is not None:
        value = k.where(level.later, each.a, each.b)
    assert value is not None, "what is wanted is a sum of one of them"
    near = _near(d, value, decay)
    weights = k.where(level.either, both, k.full(0.0).to(d.operand)).hinted("weights")
    seen = weights.dot(near.along(**{d.row: d.col}), precision=d.precision).hinted("seen")
    shares = {each.to_later: True, each.to_earlier: False}
    for name, of_later in shares.items():
        if name:
            both_ways = (seen * decay, 0.0) if of_later else (0.0, seen * decay)
            label = "to_later" if of_later else "to_earlier"
            _add(sums, name, k.where(level.later, *both_ways), label)
    if each.to_gates or each.entering or each.across:
        share = near.to("f32") * seen
        if each.across:
            rows = share.to(d.operand).along(**{d.row: d.col})
            inside = _between(d, level).to(d.operand)
            _add(sums, each.across, inside.dot(rows, precision=d.precision), "across")
        _add(sums, each.to_gates, k.where(level.later, share, -share), "to_gates")
        _add(sums, each.entering, k.where(level.later, share, 0.0), "entering")


def _between(d: Decays, level: Level) -> Tile:
    """The gates [row, col] that lie between a row of a half (col) and the border of its block: of a
    later row those up to it, of an earlier one those behind it."""
    assert level.half is not None and level.later is not None
    k, names = d.k, {d.row: d.col}
    i = k.iota(d.row, d.rows.length)
    j, piece = i.along(**names), i // level.half
    until = j > i if d.exclusive else j >= i
    inside = k.where(level.later, until, j < i) & piece.equals(piece.along(**names))
    return k.where(inside, 1.0, 0.0).named("between")
