"""Pairs of rows of a chunk that decay along a dim, written into a tile program.

With G the running sums of log gates, a pair of a later row i and an earlier row j decays by
exp(G_i - G_j), and from a row r between them on by the product of

    left_i = exp(G_i - G_r)      right_j = exp(G_r - G_j)

so that sums over pairs are products of matrices, as soon as they share r. Neither factor may
overflow. If gates are moderate, all pairs of the chunk may share its middle row: factors beyond 1
are small enough. That is done first, for it is the rule, and what comes of it is taken if no
exponent was beyond LIMIT. Else rows are the leaves of a binary tree: pairs that meet in a block of
it, one in each half, share the last row of its first half, and both exponents are sums of gates in
between, so that no factor is beyond 1:

    for half in C/2, ..., 16:             blocks of 2 half rows, pairs of different halves
    if gates are moderate in blocks of 16 rows:
        all pairs of such a block
    else:
        for half in 8, 4, 2, 1:           blocks of 2 half rows, pairs of different halves

A pair of a row with itself does not decay, and is added exactly.

source: blocks with exponents summed from their border: Yang et al., arXiv 2312.06635, sec. 4.3.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import sympy

from archc.tile.compose import Composer, Length
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
    its rows alone ("exclusive"). `at` reads sums at some rows from memory, at [row] or at one
    (None: from `sums`). `moderate`: gates are known to be. `operand` is the dtype of operands of
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


Made = tuple[Decays, Sequence[tuple[Tile, Tile]]]
"""Decays along a part of the dim, and of each product its later rows and its earlier rows there,
each [row, dim]."""


@dataclass(frozen=True)
class Products:
    """Grams that share their decays: how many parts of the dim there are, one after the other, what
    is made of one, and of each product whether a row is paired with itself too."""

    k: Composer
    rows: Dim
    col: Dim
    parts: Length
    make: Callable[[Tile], Made]
    own: tuple[bool, ...]
    moderate: bool = False


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


def grams(p: Products) -> tuple[Tile, ...]:
    """A[i, j] = sum over dim of a[i] exp(span[i, j]) b[j] for j < i (j <= i where a row is paired
    with itself), else 0: a matrix [row, col] for each product. source: `Gram` of
    archc/ir/chunk.py."""
    k, count, own = p.k, len(p.own), sum(p.own)
    zeros, none = [k.full(0.0, p.rows, p.col)] * count, k.full(0.0, p.rows)
    with k.loop(0, p.parts, *zeros, *[none] * (own + 1), index="part") as turn:
        d, products = p.make(turn.index)
        level, size = _all_at_once(d)
        paired = [pair for pair, wanted in zip(products, p.own, strict=True) if wanted]
        itself = [(a * b).sum(d.dim.name) for a, b in paired]
        worst = k.apply("max", turn.carried[-1], size.max(d.dim.name))
        itself = [x + y for x, y in zip(turn.carried[count:-1], itself, strict=True)]
        made = _add_products(d, level, products, turn.carried[:count])
        turn.next(*made, *itself, worst)
    found, itself = turn.results[:count], iter(turn.results[count:-1])
    if not p.moderate:
        hard = turn.results[-1].max(p.rows.name) > _limit(d)
        found = _again(k, hard, found, lambda: _by_parts(p, zeros))
    i, j = k.iota(p.rows.name, p.rows.length), k.iota(p.col.name, p.col.length)
    return tuple(
        k.where(i > j, below, k.where(i.equals(j), next(itself), 0.0) if wanted else 0.0)
        for below, wanted in zip(found, p.own, strict=True)
    )


def _by_parts(p: Products, start: Sequence[Tile]) -> tuple[Tile, ...]:
    """The same below the diagonal, down the tree."""
    with p.k.loop(0, p.parts, *start, index="part") as turn:
        d, products = p.make(turn.index)
        turn.next(*_down_the_tree(d, lambda x, y: _add_products(d, x, products, y), turn.carried))
    return turn.results


def _add_products(
    d: Decays, level: Level, products: Sequence[tuple[Tile, Tile]], sums: Sequence[Tile]
) -> tuple[Tile, ...]:
    """Sums of products with the pairs of a level added to them; of one that is for all pairs, with
    any numbers where j >= i."""
    made = []
    for (a, b), total in zip(products, sums, strict=True):
        left, right = _near(d, a, level.left), _near(d, b, level.right).along(**{d.row: d.col})
        if level.pairs is None:
            made.append(left.dot(right, total, precision=d.precision))
        else:
            product = left.dot(right, precision=d.precision)
            made.append(total + d.k.where(level.pairs, product, 0.0))
    return tuple(made)


def mixes(d: Decays, pairs: Sequence[Weighed]) -> dict[str, Tile]:
    """Sums over weighed pairs by name, each [row, dim]: `Weighed` says which. All are made in one
    pass. source: `Mix` and `GateGradient` of archc/ir/chunk.py.

    Gates between two rows get what the pair adds: it enters at the later row and leaves at the
    earlier one, in the same digits, and is summed from the last row on."""
    made, size = _mixed_at_once(d, pairs)
    if not d.moderate:
        hard = size.max(d.dim.name).max(d.row) > _limit(d)
        made = _again(d.k, hard, made, lambda: _mixed_down(d, pairs))
    return _finished(d, pairs, made)


def mixes_by_parts(
    k: Composer,
    rows: Dim,
    parts: Length,
    make: Callable[[Tile], tuple[Decays, Sequence[Weighed]]],
    store: Callable[[Tile, dict[str, Tile]], None],
    moderate: bool = False,
) -> None:
    """The same for one part of the dim after the other: `make` says of what, and `store` what
    becomes of it. A chunk whose gates are not moderate is done again, and stored again, so that
    what is the rule is a loop of nothing else, whose loads go ahead."""
    with k.loop(0, parts, k.full(0.0, rows).named("worst"), index="part") as turn:
        d, pairs = make(turn.index)
        made, size = _mixed_at_once(d, pairs)
        store(turn.index, _finished(d, pairs, made))
        turn.next(k.apply("max", turn.carried[0], size.max(d.dim.name)))
    if moderate:
        return
    hard = turn.results[0].max(rows.name) > _limit(d)
    with k.branch(hard.named("hard")):
        k.sync()  # other threads may store again what these have stored
        with k.loop(0, parts, index="part") as turn:
            d, pairs = make(turn.index)
            store(turn.index, _finished(d, pairs, _mixed_down(d, pairs)))


def _names(d: Decays, pairs: Sequence[Weighed]) -> list[str]:
    """The sums that are made of some pairs; of gates between rows also those of later rows."""
    names = [*dict.fromkeys(name for each in pairs for name in each.wanted)]
    kept = [f"{each.to_gates} own" for each in pairs if each.to_gates and d.exclusive]
    return [*names, *dict.fromkeys(kept)]


def _adding(d: Decays, pairs: Sequence[Weighed]) -> tuple[Add, tuple[Tile, ...]]:
    """How the pairs of a level are added, and to what at first."""
    names = _names(d, pairs)

    def add(level: Level, given: Sequence[Tile]) -> tuple[Tile, ...]:
        sums = dict(zip(names, given, strict=True))
        for each in pairs:
            _add_pairs(d, level, each, sums)
        return tuple(sums[name] for name in names)

    return add, (d.k.full(0.0, d.rows, d.dim),) * len(names)


def _mixed_at_once(d: Decays, pairs: Sequence[Weighed]) -> tuple[tuple[Tile, ...], Tile]:
    """The sums of all pairs at once, and how large exponents are."""
    level, size = _all_at_once(d)
    add, zeros = _adding(d, pairs)
    return add(level, zeros), size


def _mixed_down(d: Decays, pairs: Sequence[Weighed]) -> tuple[Tile, ...]:
    """The same down the tree."""
    return _down_the_tree(d, *_adding(d, pairs))


def _finished(d: Decays, pairs: Sequence[Weighed], made: Sequence[Tile]) -> dict[str, Tile]:
    """Sums with what rows are to themselves, and those of gates from the last row on."""
    found = dict(zip(_names(d, pairs), made, strict=True))
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


Add = Callable[[Level, Sequence[Tile]], tuple[Tile, ...]]
"""Sums with the pairs of a level added to them."""


def _again(
    k: Composer, hard: Tile, made: Sequence[Tile], make: Callable[[], Sequence[Tile]]
) -> tuple[Tile, ...]:
    """What is made, or made otherwise where that is no good."""
    with k.branch(hard.named("hard")) as again:
        again.give(*make())
    with k.otherwise(again) as easy:
        easy.give(*made)
    return again.results


def _all_at_once(d: Decays) -> tuple[Level, Tile]:
    """All pairs of a chunk, which share its middle row, and how large exponents are."""
    k = d.k
    down, up = _exponents(d, _at_one(d, k.lift(d.rows.length, "i32") // 2 - 1))
    level = Level(k.apply("exp", down).named("left"), k.apply("exp", up).named("right"))
    size = k.apply("abs", up)
    return level, k.apply("max", k.apply("abs", down), size) if d.exclusive else size


def _down_the_tree(d: Decays, add: Add, sums: Sequence[Tile]) -> tuple[Tile, ...]:
    """Sums over all pairs, level by level. Half as many turns as a chunk has blocks of 16 rows are
    enough for those that are longer; of a long chunk they are more, and add nothing."""
    k, i = d.k, d.k.iota(d.row, d.rows.length)
    start = (k.lift(d.rows.length, "i32") // 2).named("half"), *sums
    with k.loop(0, sympy.floor(d.rows.length / 32), *start, index="level") as turn:
        half, *rest = turn.carried
        turn.next(half // 2, *add(_halves(d, half, 16), rest))
    sums = turn.results[1:]
    down, up = _exponents(d, _at_each(d, k.lift(8, "i32")))
    size = k.apply("max", k.apply("abs", down), k.apply("abs", up))
    with k.branch((size.max(d.dim.name).max(d.row) <= _limit(d)).named("moderate")) as moderate:
        block, names = i // 16, {d.row: d.col}
        pairs = block.equals(block.along(**names)) & (i > i.along(**names))
        level = Level(k.apply("exp", down), k.apply("exp", up), pairs.named("pairs"))
        moderate.give(*add(level, sums))
    with k.otherwise(moderate) as small:
        with k.loop(0, 4, k.lift(8, "i32").named("half"), *sums, index="level") as turn:
            half, *rest = turn.carried
            turn.next(half // 2, *add(_halves(d, half, 1), rest))
        small.give(*turn.results[1:])
    return moderate.results


def _halves(d: Decays, half: Tile, least: int) -> Level:
    """Blocks of two halves: pairs of a row in the second one and a row in the first one, if a half
    has at least so many rows. Every row has one factor, as the later or as the earlier one."""
    k, names = d.k, {d.row: d.col}
    enough = half >= least
    half = k.apply("max", half, least)
    piece = k.iota(d.row, d.rows.length) // half
    later = ((piece % 2).equals(1) & enough).named("later")
    there = _at_each(d, half)
    before = d.sums if d.before is None else d.before
    exponent = k.where(later, before - there, there - d.sums).to("f32")
    decay = k.apply("exp", exponent).named("decay")
    block = (piece // 2).named("block")
    first = (piece % 2 < 1).along(**names)
    pairs = block.equals(block.along(**names)) & later & first
    return Level(decay, decay, pairs.named("pairs"))


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


def _limit(d: Decays) -> Tile | float:
    """How large an exponent may be, in the range of the operands of products."""
    if d.operand == "f16":
        return NARROW_LIMIT
    if d.operand in ("bf16", "f32", "f64"):
        return LIMIT
    return d.k.where(d.k.chosen(d.operand, "f16"), NARROW_LIMIT, LIMIT)


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
