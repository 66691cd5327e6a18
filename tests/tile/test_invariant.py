"""Products and sums that no turn changes are made before their loop, and nothing else is moved."""

from __future__ import annotations

import pytest
import sympy
import torch

from archc.tile.compose import Composer
from archc.tile.interpreter import run
from archc.tile.invariant import before_loops
from archc.tile.language import Dot, For, Program, Reduce, statements
from archc.tile.unread import swept
from archc.tile.verifier import verify

ROWS, TURNS = 4, 3


def program(written: bool = False, nested: bool = False) -> Program:
    """z[i, n] = sum over j of (2 x x.T)[i, j] b[j, n], one n after the other. `written`: the loop
    stores to x as well, `nested`: it stands in another loop, of one turn."""
    k = Composer("scaled", "z = 2 x x.T b.")
    R, N = k.lengths("R", "N")
    x, b = k.buffer("x", r=R, c=R), k.buffer("b", r=R, n=N)
    z = k.buffer("z", r=R, n=N)
    i, j, c = (k.iota(name, R) for name in "ijc")
    if nested:
        with k.loop(0, 1, index="m") as outer:
            turns(k, (x, b, z), (i, j, c), N, written)
            outer.next()
    else:
        turns(k, (x, b, z), (i, j, c), N, written)
    return k.done()


def turns(k: Composer, buffers: tuple, at: tuple, count: sympy.Expr, written: bool) -> None:
    (x, b, z), (i, j, c) = buffers, at
    with k.loop(0, count, index="n") as turn:
        twice = 2.0 * k.dot(k.load(x, i, c), k.load(x, j, c))
        k.store(z, i, turn.index, value=(twice * k.load(b, j, turn.index)).sum("j"))
        if written:
            k.store(x, i, c, value=2.0 * k.load(x, i, c))
        turn.next()


def inside(made: Program) -> list[type]:
    """Products and sums within loops."""
    loops = (each for each in statements(made.body) if isinstance(each.op, For))
    found = (each for loop in loops for block in loop.blocks for each in statements(block))
    return [type(each.op) for each in found if isinstance(each.op, Dot | Reduce)]


@pytest.mark.parametrize("nested", [False, True])
def test_a_product_of_no_turn_stands_before_all_loops(nested: bool) -> None:
    made = swept(before_loops(program(nested=nested)))
    assert {*inside(program(nested=nested))} == {Dot, Reduce}
    assert {*inside(made)} == {Reduce}
    assert not verify(made)
    x, b = (torch.randn(ROWS, n, dtype=torch.float64) for n in (ROWS, TURNS))
    tensors = {"x": x, "b": b, "z": torch.full_like(b, torch.nan)}
    run(made, tensors, {}, {"R": ROWS, "N": TURNS}, exact=True)
    torch.testing.assert_close(tensors["z"], 2 * x @ x.T @ b)


def test_what_a_loop_writes_is_read_in_each_turn() -> None:
    made = before_loops(program(written=True))
    assert Dot in inside(made)
