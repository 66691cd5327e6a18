"""Sums, moves and scans along the rows of a chunk, and spans between rows, written into a tile
program.

Rows are one dim of a tile, all of it at once. What each computes is in `archc/ir/row_pairs.py`.
"""

from __future__ import annotations

import sympy

from archc.ir.chunk import LEAST_GATE
from archc.tile.compose import Composer
from archc.tile.handle import Tile


def sums(
    k: Composer,
    x: Tile,
    row: str,
    *,
    reverse: bool = False,
    exclusive: bool = False,
    gates: bool = False,
    dtype: str = "f32",
) -> Tile:
    """Running sums along the rows, of x [row, ...] in float32. `gates`: of log gates, whose
    differences are wanted: they are summed in `dtype`, and none counts as less than LEAST_GATE.
    source: `Sums` of archc/ir/chunk.py."""
    if gates:
        x = k.apply("max", x, LEAST_GATE).to(dtype)
    if exclusive:
        x = moved(k, x, row, -1 if reverse else 1)
    return x.scan("sum", row, reverse)


def moved(k: Composer, x: Tile, row: str, steps: int, fill: float = 0.0) -> Tile:
    """x [row, ...] of the row `steps` before each (after, if negative), `fill` where there is none.
    source: `Move` of archc/ir/chunk.py."""
    if steps == 0:
        return x
    length = x.dim(row).length
    i, last = k.iota(row, length), k.lift(length, "i32") - 1
    there = i - steps
    inside = there >= 0 if steps > 0 else there <= last
    place = k.apply("max", k.apply("min", there, last), 0)
    return k.where(inside, x.pick(place.over(*x.dims), row), k.full(fill).to(x.dtype))


def scan(
    k: Composer,
    a: Tile,
    b: Tile,
    first: Tile,
    row: str,
    *,
    kind: str = "linear",
    reverse: bool = False,
) -> Tile:
    """h[i] = a[i] h[i-1] + b[i] along the rows, from `first`, which has no row; "max-plus":
    h[i] = max(a[i] + h[i-1], b[i]). With `reverse` from the last row on. Joins are associative:
    of h -> a h + b, then h -> c h + d it is h -> a c h + (c b + d). source: `Scan` of
    archc/ir/chunk.py."""
    if row not in a.value.type.names and row not in b.value.type.names:
        raise ValueError(f"a scan along {row} of tiles without it")

    def linear(x: tuple[Tile, ...], y: tuple[Tile, ...]) -> tuple[Tile, ...]:
        return x[0] * y[0], y[0] * x[1] + y[1]

    def max_plus(x: tuple[Tile, ...], y: tuple[Tile, ...]) -> tuple[Tile, ...]:
        return x[0] + y[0], k.apply("max", y[0] + x[1], y[1])

    if kind == "max-plus":
        factor, made = k.scan(max_plus, row, a, b, reverse=reverse)
        return k.apply("max", factor + first, made)
    factor, made = k.scan(linear, row, a, b, reverse=reverse)
    return factor * first + made


def matrix_scan(
    k: Composer,
    A: Tile,
    b: Tile,
    first: Tile | None,
    row: str,
    axes: tuple[str, str],
    *,
    reverse: bool = False,
    precision: str = "ieee",
) -> Tile:
    """h[i] = A h[i-1] + b[i] along the rows, for one matrix A [to, from] of the dims `axes`, both
    as long as that of b [row, from], and h [row, from]; `first` [from] is None where it is 0.

    Sums of 2, 4, 8, ... addends, with the matrix squared from each to the next:
    x[i] += A^n x[i - n] for n = 1, 2, 4, ...; row by row where there is no room for that, as for a
    matrix of 128 x 128, whose square is four tiles of 64 KiB in shared memory. The padding of A and
    b is 0. source: `Scan` of archc/ir/chunk.py with `matrix`."""
    to, since = axes
    A, length = A.ordered(since, to), b.dim(row).length
    x, i = b.ordered(row, since), k.iota(row, length)
    if first is not None:
        end = k.lift(length, "i32") - 1 if reverse else k.lift(0, "i32")
        x = x + k.where(i.equals(end), _times(A, first, to, since), 0.0)
    dims = k.lift(A.dim(since).length, "i32")
    with k.branch((dims > 64).named("wide")) as wide:
        wide.give(_row_by_row(k, A, x, row, axes, reverse))
    with k.otherwise(wide) as narrow:
        narrow.give(_doubled(k, A, x, row, axes, reverse, precision))
    return wide.results[0]


def _times(A: Tile, h: Tile, to: str, since: str) -> Tile:
    """A h, for one row."""
    return (A * h).sum(since).along(**{to: since})


def _row_by_row(
    k: Composer, A: Tile, x: Tile, row: str, axes: tuple[str, str], reverse: bool
) -> Tile:
    """A scan where there is no room to square the matrix."""
    i, rows = k.iota(row, x.dim(row).length), k.lift(x.dim(row).length, "i32")
    (dim,) = (dim for dim in x.dims if dim.name != row)
    start = k.full(0.0, dim).named("h"), x.named("rows")
    with k.loop(0, rows, *start, index="step") as turn:
        h, made = turn.carried
        here = i.equals(rows - 1 - turn.index if reverse else turn.index)
        h = _times(A, h, *axes) + k.where(here, made, 0.0).sum(row)
        turn.next(h, k.where(here, h, made))
    return turn.results[1]


def _doubled(
    k: Composer, A: Tile, x: Tile, row: str, axes: tuple[str, str], reverse: bool, precision: str
) -> Tile:
    """Sums of twice as many addends at each turn; those of 16 rows have length / 4 turns."""
    (to, since), length = axes, x.dim(row).length
    i, rows = k.iota(row, length), k.lift(length, "i32")
    start = k.lift(1, "i32").named("steps"), x.named("sums"), A.named("power")
    with k.loop(0, sympy.floor(length / 4), *start, index="level") as turn:
        steps, h, power = turn.carried
        there = i + steps if reverse else i - steps
        inside = there < rows if reverse else there >= 0
        place = k.apply("max", k.apply("min", there, rows - 1), 0)
        with k.branch((steps < rows).named("going")) as going:
            before = k.where(inside, h.pick(place.over(*h.dims), row), 0.0)
            made = h + before.dot(power, precision=precision).along(**{to: since})
            left, right = power.along(**{to: "middle"}), power.along(**{since: "middle"})
            going.give(2 * steps, made, left.dot(right, precision=precision))
        with k.otherwise(going) as done:
            done.give(*turn.carried)
        turn.next(*going.results)
    return turn.results[1]


# --- spans --------------------------------------------------------------------------------------


def spans(
    k: Composer,
    g: Tile,
    row: str,
    col: str,
    *,
    strict: bool = False,
    exclusive: bool = False,
    in_exp: bool = False,
    dtype: str = "f32",
) -> Tile:
    """span[i, j] = the sum of log gates g [row] of the rows r with j < r <= i ("exclusive":
    j < r < i), [row, col]; -inf where j > i, or j = i if `strict` or `exclusive`.

    Each is a sum of its own, of which gates of -1e4 and -inf lose nothing. `in_exp`: nothing but
    exp is wanted of them, and they are differences of sums in `dtype`, of gates that count as no
    less than LEAST_GATE. source: `Spans` of archc/ir/chunk.py."""
    i = k.iota(row, g.dim(row).length)
    j = i.along(**{row: col})
    if in_exp:
        total = sums(k, g, row, gates=True, dtype=dtype)
        until = sums(k, g, row, gates=True, exclusive=True, dtype=dtype) if exclusive else total
        between = (until - total.along(**{row: col})).to("f32")
    else:
        g = moved(k, g, row, 1) if exclusive else g
        last = i - 1 if exclusive else i
        between = k.where(last > j, g, 0.0).ordered(row, col).scan("sum", row)
    kept = i > j if strict or exclusive else i >= j
    return k.where(kept, between, float("-inf")).ordered(row, col)


def spans_gradient(
    k: Composer,
    d: Tile,
    row: str,
    col: str,
    *,
    exclusive: bool = False,
    dtype: str = "f32",
) -> Tile:
    """The gates' share of a cotangent d [row, col] of spans: at r the sum over i >= r > j of it
    ("exclusive": i > r > j). A pair counts from its later row on, to the row after its earlier one,
    in sums of `dtype`. source: `SpansGradient` of archc/ir/chunk.py."""
    d = d.ordered(row, col)
    i = k.iota(row, d.dim(row).length)
    kept = k.where(i > i.along(**{row: col}), d, 0.0).to(dtype)
    later = kept.sum(col)
    earlier = kept.sum(row).along(**{col: row})
    total = (later - earlier).scan("sum", row, reverse=True)
    return (total - later if exclusive else total).to("f32")
