"""Axes of a buffer that one index goes through are one, and nothing else changes."""

from __future__ import annotations

import pytest
import torch

from archc.tile.compose import Composer
from archc.tile.interpreter import run
from archc.tile.joined import joined
from archc.tile.language import Apply, Load, Program, statements
from archc.tile.unread import swept
from archc.tile.verifier import verify

STEPS, ROWS = 3, 8


def program(by: int = STEPS, again: bool = False) -> Program:
    """Sums over heads of the steps of tokens, row by row; `again`: tokens are read by themselves
    too."""
    k = Composer("steps", "y = the sums over heads of the first rows of x.")
    (T,) = k.sizes("T")
    (N,) = k.lengths("N")
    x, y = k.buffer("x", t=T, s=STEPS, c=N), k.buffer("y", r=ROWS)
    row, c = k.iota("r", ROWS), k.iota("c", N)
    every = row + 2
    inside = every // by < T
    found = k.load(x, every // by, every % by, c, where=(inside,)).sum("c")
    if again:
        found = found + k.load(x, every // by, 0, c, where=(inside,)).sum("c")
    k.store(y, row, value=found)
    return swept(k.done())


@pytest.mark.parametrize(("by", "again", "axes"), [(3, False, 2), (2, False, 3), (3, True, 3)])
def test_steps_of_tokens_are_one_axis(by: int, again: bool, axes: int) -> None:
    """Where their number is that of the quotient, and nothing reads them in another way."""
    before, made = program(by, again), swept(joined(program(by, again)))
    assert not verify(made)
    loads = [s for s in statements(made.body) if isinstance(s.op, Load)]
    assert {len(s.op.buffer.axes) for s in loads} == {axes}
    rests = [s for s in statements(made.body) if s.op == Apply("mod")]
    assert bool(rests) == (axes == 3)
    found = []
    x = torch.arange(3 * STEPS * 5, dtype=torch.float64).reshape(3, STEPS, 5)
    for each in (before, made):
        y = torch.full((ROWS,), torch.nan, dtype=torch.float64)
        run(each, {"x": x, "y": y}, {"T": 3}, {"N": 5}, exact=True)
        found.append(y)
    torch.testing.assert_close(*found)
    if by == STEPS and not again:
        rows = x.reshape(-1, 5).sum(-1)
        wanted = torch.cat([rows[2:], rows.new_zeros(ROWS)])[:ROWS]
        torch.testing.assert_close(found[1], wanted)
