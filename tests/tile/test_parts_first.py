"""Loops with products in two parts stand first, where they are made of loads, and nothing else
changes."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from archc.tile.compose import Composer
from archc.tile.interpreter import run
from archc.tile.language import For, Program, Reduce
from archc.tile.parts_first import parts_first
from archc.tile.verifier import verify

ROWS, PART = 16, 16


def program(dtype: str = "bf16", of_sum: bool = False, written: bool = False) -> Program:
    """y = sums of x + x @ z, z block by block. `of_sum`: z times the sum of all x, `written`: x is
    y."""
    k = Composer("summed", "y = the sums of rows of x, and x @ z.")
    (N,) = k.sizes("N")
    x, y = k.buffer("x", i=ROWS, n=N), k.buffer("y", i=ROWS, j=ROWS)
    z = k.buffer("z", n=N, j=ROWS)
    i, j, first = k.iota("i", ROWS), k.iota("j", ROWS), k.iota("n", PART)
    source = y if written else x
    rows = k.load(source, i, k.iota("j", ROWS) if written else first).sum("j" if written else "n")
    with k.loop(0, N // PART, k.full(0.0, *i.dims, *j.dims), index="n") as turn:
        n = k.iota("n", PART) + turn.index * PART
        factor = k.load(z, n, j)
        factor = factor * rows.sum("i") if of_sum else factor
        left = k.load(y, i, n) if written else k.load(x, i, n)
        turn.next(turn.carried[0] + k.dot(left.to(dtype), factor.to(dtype)))
    k.store(y, i, j, value=turn.results[0] + rows)
    return k.done()


def order(made: Program) -> list[type]:
    """The ops of the text, of loops and sums across threads."""
    kinds = (For, Reduce)
    return [type(each.op) for each in made.body.statements if isinstance(each.op, kinds)]


def test_a_loop_of_products_in_two_parts_stands_first() -> None:
    assert order(program()) == [Reduce, For]
    assert order(parts_first(program())) == [For, Reduce]


@pytest.mark.parametrize("other", [{"dtype": "f32"}, {"of_sum": True}, {"written": True}])
def test_other_loops_stay(other: dict[str, Any]) -> None:
    """One with products as the data are, one that needs what is made before, and one that reads
    what is written."""
    made = program(**other)
    assert parts_first(made).body.statements == made.body.statements


def test_the_numbers_are_the_same() -> None:
    made = parts_first(program())
    assert not verify(made)
    x, z = torch.randn(ROWS, 3 * PART).bfloat16(), torch.randn(3 * PART, ROWS).bfloat16()
    y = torch.full((ROWS, ROWS), torch.nan, dtype=torch.float64)
    tensors = {"x": x.double(), "z": z.double(), "y": y}
    run(made, tensors, {"N": 3 * PART}, {}, exact=True)
    x, z = x.double(), z.double()
    torch.testing.assert_close(y, x @ z + x[:, :PART].sum(1)[:, None])
