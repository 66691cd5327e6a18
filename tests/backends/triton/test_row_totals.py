"""Totals of running sums of rows of products: kernels that Triton could not compile for sm_100."""

from __future__ import annotations

from archc.backends.triton.printer import to_triton
from archc.backends.triton.row_totals import totals_of_running_sums

from archc.tile.compose import Composer
from archc.tile.language import Program


def program(running: bool) -> Program:
    """The total of the sums of the rows of a product, or of their running sums."""
    k = Composer("totals", "y = sum of the rows of a @ b.")
    (N,) = k.lengths("N")
    a, b, y = k.buffer("a", i=N, j=N), k.buffer("b", j=N, k=N), k.buffer("y")
    i, j, c = k.iota("i", N), k.iota("j", N), k.iota("k", N)
    rows = k.load(a, i, j).dot(k.load(b, j, c), precision="ieee").sum("k")
    rows = rows.scan("sum", "i") if running else rows
    k.store(y, value=(2.0 * rows).sum("i"))
    return k.done()


def test_they_alone_may_be_laid_out_anew() -> None:
    assert len(totals_of_running_sums(program(running=True))) == 1
    assert not totals_of_running_sums(program(running=False))
    assert "can_reorder=True), 0)" in to_triton(program(running=True))
