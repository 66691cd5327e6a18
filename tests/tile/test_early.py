"""Loads of vectors that lie apart in memory are issued a turn early, and nothing else changes."""

from __future__ import annotations

import re

import pytest
import torch
from archc.backends.triton.printer import to_triton

from archc.tile.compose import Composer
from archc.tile.early import early
from archc.tile.interpreter import run
from archc.tile.language import For, Load, Program, statements
from archc.tile.verifier import verify

HEADS, ROWS = 3, 4


def program(written: bool = False, backward: bool = False) -> Program:
    """Sums of rows of one head times a number each, chunk by chunk: the numbers lie apart, the rows
    side by side. `written`: they are written as they are read."""
    k = Composer("weighted", "y = the sum over rows of w x, of one head.")
    (T,) = k.sizes("T")
    N, STAGES = k.lengths("N", "STAGES")
    x = k.buffer("x", t=T, c=N)
    w = k.buffer("w", "bf16", strided=True, t=T, h=HEADS)
    y = k.buffer("y", c=N)
    c, r = k.iota("c", N), k.iota("r", ROWS)
    count = k.lift((T + ROWS - 1) // ROWS)
    with k.loop(0, count, k.full(0.0, *c.dims), index="n", ahead=str(STAGES)) as turn:
        n = count - 1 - turn.index if backward else k.lift(T // 1000) + turn.index
        t = n * ROWS + r
        weight = k.load(w, t, 1, where=(t < T,))
        if written:
            k.store(w, t, 1, value=0 * weight, where=(t < T,))
        rows = k.load(x, t, c, where=(t < T,))
        turn.next(turn.carried[0] + (weight * rows).sum("r"))
    k.store(y, c, value=turn.results[0])
    return k.done()


def loads_in_loops(made: Program) -> list[int]:
    """How many dims each load of a loop has, in order."""
    loops = [s for s in statements(made.body) if isinstance(s.op, For)]
    inside = (s for loop in loops for s in statements(loop.blocks[0]))
    return [len(s.results[0].type.dims) for s in inside if isinstance(s.op, Load)]


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("tokens", [0, 3, 4, 9])
def test_the_numbers_are_the_same(tokens: int, backward: bool) -> None:
    made = early(program(backward=backward))
    assert not verify(made)
    x = torch.randn(tokens, 5, dtype=torch.float64)
    w = torch.randn(tokens, HEADS, dtype=torch.float64)
    tensors = {"x": x, "w": w, "y": torch.full((5,), torch.nan, dtype=torch.float64)}
    run(made, tensors, {"T": tokens}, {"N": 5, "STAGES": 2}, exact=True)
    torch.testing.assert_close(tensors["y"], (w[:, 1:2] * x).sum(0))


def test_what_lies_apart_is_loaded_first_and_a_turn_early() -> None:
    (before,) = (s for s in statements(program().body) if isinstance(s.op, For))
    made = early(program())
    (loop,) = (s for s in statements(made.body) if isinstance(s.op, For))
    assert len(loop.results) == len(before.results) + 1
    assert loads_in_loops(program()) == [1, 2] == loads_in_loops(made)
    outside = [s for s in made.body.statements if isinstance(s.op, Load)]
    assert [s.op.buffer.name for s in outside] == ["w"]
    assert not re.search(r"\+ 0\b(?!\.)", to_triton(made))  # which number 0 is the first of


def test_what_a_turn_writes_is_read_in_its_turn() -> None:
    assert loads_in_loops(early(program(written=True))) == [1, 2]
    assert not [s for s in early(program(written=True)).body.statements if isinstance(s.op, Load)]


def plain(backward: bool = False) -> Program:
    """Rows of numbers, each times what was added so far and two numbers of the turn, of which one
    is loaded behind the rows; the loop does not say how far ahead it loads."""
    k = Composer("scaled", "y = the sum over turns of rows scaled by numbers of each turn.")
    (T,) = k.sizes("T")
    (N,) = k.lengths("N")
    x, y = k.buffer("x", t=T, c=N), k.buffer("y", c=N)
    w, s = k.buffer("w", "bf16", strided=True, t=T, h=HEADS), k.buffer("s", t=T)
    c, r = k.iota("c", N), k.iota("r", ROWS)
    count = k.lift((T + ROWS - 1) // ROWS)
    with k.loop(0, count, k.full(0.0, *c.dims), index="n") as turn:
        n = count - 1 - turn.index if backward else turn.index
        t = n * ROWS + r
        weight = k.load(w, t, 1, where=(t < T,))
        rows = k.load(x, t, c, where=(t < T,)) * weight
        scale = k.load(s, t, where=(t < T,))
        turn.next(turn.carried[0] + (rows * scale).sum("r"))
    k.store(y, c, value=turn.results[0])
    return k.done()


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("tokens", [0, 3, 9])
def test_vectors_of_a_plain_walk_are_loaded_before_its_rows(tokens: int, backward: bool) -> None:
    made = early(plain(backward), walks=True)
    assert not verify(made)
    assert loads_in_loops(plain(backward)) == [1, 2, 1] == loads_in_loops(early(plain(backward)))
    assert loads_in_loops(made) == [1, 1, 2]
    several = early(plain(backward), walks=True, several=True)
    assert loads_in_loops(several) == [1, 2, 1] and several != plain(backward)
    x, s = torch.randn(tokens, 5, dtype=torch.float64), torch.randn(tokens, dtype=torch.float64)
    w = torch.randn(tokens, HEADS, dtype=torch.float64)
    tensors = {"x": x, "w": w, "s": s, "y": torch.full((5,), torch.nan, dtype=torch.float64)}
    run(made, tensors, {"T": tokens}, {"N": 5}, exact=True)
    torch.testing.assert_close(tensors["y"], (w[:, 1:2] * s[:, None] * x).sum(0))


def alone(written: bool = False) -> Program:
    """Rows of numbers from the last on, over their sum, scaled by numbers that are loaded behind
    that; `written`: those are written before."""
    k = Composer("shares", "y = rows over their sum, scaled, in a branch of some of the rows.")
    (T,) = k.sizes("T")
    (N,) = k.lengths("N")
    x, y, s = k.buffer("x", t=T, c=N), k.buffer("y", t=T, c=N), k.buffer("s", t=T)
    c, r = k.iota("c", N), k.iota("r", ROWS)
    with k.branch(k.lift(T, "i32") > 0):
        t = T - 1 - r
        if written:
            k.store(s, t, value=k.full(2.0, *r.dims), where=(t >= 0,))
        rows = k.load(x, t, c, where=(t >= 0,))
        scale = k.load(s, t, where=(t >= 0,))
        k.store(y, t, c, value=rows / rows.sum("c") * scale, where=(t >= 0,))
    return k.done()


def begun(made: Program) -> list[int]:
    """How many dims each load of a branch has, in order."""
    (branch,) = (s for s in made.body.statements if s.blocks)
    loads = [s for s in branch.blocks[0].statements if isinstance(s.op, Load)]
    return [len(s.results[0].type.dims) for s in loads]


def test_a_program_without_loops_begins_with_its_vectors() -> None:
    made = early(alone())
    assert not verify(made)
    assert begun(alone()) == [2, 1] == begun(early(alone(written=True)))
    assert begun(made) == [1, 2]
    x, s = torch.rand(3, 5, dtype=torch.float64), torch.rand(3, dtype=torch.float64)
    tensors = {"x": x, "s": s, "y": torch.full((3, 5), torch.nan, dtype=torch.float64)}
    run(made, tensors, {"T": 3}, {"N": 5}, exact=True)
    torch.testing.assert_close(tensors["y"], x / x.sum(1, keepdim=True) * s[:, None])
