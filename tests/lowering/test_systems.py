"""Inverses of triangular systems, in float16 and beyond its range."""

from __future__ import annotations

import pytest
import torch

from archc.lowering.solve import Triangle, inverse
from archc.lowering.twice import AGAIN
from archc.tile.compose import Composer
from archc.tile.handle import Tile
from archc.tile.interpreter import run
from archc.tile.language import Program
from archc.tile.verifier import verify

ROWS = 16


def program() -> Program:
    """y = (I - a)^-1, of a matrix that is 0 on the diagonal and above."""
    k = Composer("inverse", "y = (I - a)^-1.")
    (R,) = k.lengths("R")
    k.dtypes("SOLVE")
    a, y = (k.buffer(name, r=R, c=R) for name in "ay")
    i, j = k.iota("i", R), k.iota("j", R)
    made = inverse(Triangle(k, k.load(a, i, j), "i", "j"), "SOLVE")
    k.store(y, i, j, value=made)
    return k.done()


@pytest.mark.parametrize("size", [0.3, 12.0])
@pytest.mark.parametrize("solve", ["f16", "f32"])
def test_an_inverse_is_right_whatever_its_size(solve: str, size: float) -> None:
    made = program()
    assert not verify(made)
    torch.manual_seed(0)
    a = (size * torch.randn(ROWS, ROWS)).tril(-1)
    tensors = {"a": a, "y": torch.full_like(a, torch.nan)}
    run(made, tensors, {}, {"R": ROWS, "SOLVE": solve})
    wanted = torch.linalg.inv(torch.eye(ROWS).double() - a.double())
    assert (wanted.abs().max() > 1024) == (size > 1)
    far = (tensors["y"].double() - wanted).norm() / wanted.norm()
    assert far < (5e-3 if solve == "f16" or size > 1 else 1e-5)


def program_of_two_launches() -> Program:
    """The same, launched twice: the first time `flag` learns whether y is right."""
    k = Composer("inverse", "y = (I - a)^-1.")
    (R,) = k.lengths("R")
    k.dtypes("SOLVE")
    k.fixed(AGAIN)
    a, y = (k.buffer(name, r=R, c=R) for name in "ay")
    flag = k.buffer("flag", one=1, dtype="i32")
    i, j = k.iota("i", R), k.iota("j", R)

    def again(outside: Tile) -> Tile:
        with k.branch(k.at_most(AGAIN, 0)):
            k.store(flag, k.iota("one", 1), value=k.where(outside, k.lift(1, "i32"), 0))
        return k.at_most(1, AGAIN)

    made = inverse(Triangle(k, k.load(a, i, j), "i", "j"), "SOLVE", again=again)
    k.store(y, i, j, value=made)
    return k.done()


@pytest.mark.parametrize("size", [0.3, 12.0])
def test_what_is_beyond_float16_is_made_in_the_second_launch_alone(size: float) -> None:
    """The program of the first launch has nothing in float32, whose registers it would wait for."""
    made = program_of_two_launches()
    assert not verify(made)
    torch.manual_seed(0)
    a = (size * torch.randn(ROWS, ROWS)).tril(-1)
    wanted = torch.linalg.inv(torch.eye(ROWS).double() - a.double())
    far, flags = [], torch.full((1,), -1, dtype=torch.int32)
    for again in (0, 1):
        tensors = {"a": a, "y": torch.full_like(a, torch.nan), "flag": flags}
        run(made, tensors, {}, {"R": ROWS, "SOLVE": "f16", "AGAIN": again})
        far.append(float((tensors["y"].double() - wanted).norm() / wanted.norm()))
    assert int(flags) == (size > 1)
    assert (not far[0] < 5e-3) == (size > 1)
    assert far[1] < 5e-3
