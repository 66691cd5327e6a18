"""Finds the totals of running sums of rows, where these are sums along another dim of what products
make.

    rows = tl.sum(x * tl.dot(a, b), 1)
    total = tl.sum(tl.where(first, tl.cumsum(rows, 0), 0.0), 0)

For sm_100, where products are in tensor memory, a pass of Triton 3.6 fails on them: it lays a row
out as a part of the tile that it is a sum of, and the total has no dim left for that
(`TritonNvidiaGPUOptimizeTMemLayoutsPass`: "parent layout must have at least rank >= 2"). A row that
may be laid out anew is a part of no tile.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from archc.tile.language import Dot, If, Program, Reduce, Scan, Statement, Value, statements

Made = Mapping[Value, Statement]
"""The statement that makes each value."""

PRODUCTS = (Dot, If)
"""Statements that may give what a product made, and is laid out as that; a loop lays out anew."""


def totals_of_running_sums(program: Program) -> set[Statement]:
    """The sums of such rows."""
    made = {value: s for s in statements(program.body) for value in s.results}
    totals = (s for s in made.values() if _sums_tile_of(s, 1))
    return {s for s in totals if _has_running_sum(made, s.operands[0])}


def _has_running_sum(made: Made, row: Value) -> bool:
    """Whether a row is made of a running sum of sums of a tile that a product may have made."""
    scans = (s for s in _before(made, row) if isinstance(s.op, Scan))
    tiles = (s for scan in scans for s in _before(made, *scan.operands) if _sums_tile_of(s, 2))
    return any(isinstance(s.op, PRODUCTS) for tile in tiles for s in _before(made, *tile.operands))


def _sums_tile_of(s: Statement, dims: int) -> bool:
    """Whether a statement sums a tile of so many dims along one of them."""
    return isinstance(s.op, Reduce) and len(s.operands[0].type.dims) == dims


def _before(made: Made, *values: Value) -> Iterator[Statement]:
    """The statements that values are made by, and those before them."""
    waiting, seen = [*values], set[Statement]()
    while waiting:
        s = made.get(waiting.pop())
        if s is not None and s not in seen:
            seen.add(s)
            yield s
            waiting += s.operands
