"""Inverses of unit lower triangular matrices, block by block."""

from __future__ import annotations

import pytest
import torch

from archc.tile.interpreter import run
from tests.lowering.chunk_cases import solve_tril
from tests.lowering.test_pairs import is_right
from tests.tile.cases import Drawn, errors


@pytest.mark.parametrize("C", [16, 32, 64])
def test_inverses_are_those_of_torch(C: int) -> None:
    is_right(solve_tril(Drawn(), C=C))


def test_float16_has_its_digits() -> None:
    """Products are rounded, and more than in float32."""
    case = solve_tril(Drawn(torch.float32), C=64, SOLVE="f16")
    is_right(case, exact=False, limit=1e-3)
    assert max(errors(case).values()) > 1e-6


def test_what_grows_beyond_float16_is_made_again() -> None:
    """Entries of 1e9: in float16 they would be infinite."""
    case = solve_tril(Drawn(torch.float32), C=64, SOLVE="f16", size=12.0)
    assert case.expected["inverse"].abs().max() > 1e6
    is_right(case, exact=False, limit=1e-3)


def test_one_program_alone_is_made_again() -> None:
    """A matrix that grows costs its neighbours nothing, not even digits."""
    draw = Drawn(torch.float32)
    mixed, plain = solve_tril(draw, C=32, SOLVE="f16"), solve_tril(draw, C=32, SOLVE="f16")
    mixed.tensors["A"][0, 0, 0] *= 100
    for case in (mixed, plain):
        run(case.program, case.tensors, case.sizes, case.constants)
    same = mixed.tensors["inverse"] == plain.tensors["inverse"]
    assert same[0, 1:].all() and same[0, 0, 1].all() and not same[0, 0, 0].all()
