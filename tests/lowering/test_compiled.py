"""Programs of chunks as machine code, ahead of time: they compile, and spills are bounded."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from tests.lowering import chunk_cases
from tests.tile.cases import Drawn

pytest.importorskip("triton")

SIZES = {"T": 64, "H": 16}
CASES = {
    "scores": {"K": 128, "BLOCK": 32},
    "scores_gradient": {"K": 128, "BLOCK": 32},
    "solve_tril": {"SOLVE": "f16"},
}
SPILLED = {"scores_gradient": 768}
"""Bytes of a thread in local memory, of the tree for hard gates; 256 where nothing is said."""


def stack_of(name: str, C: int, capability: int) -> int:
    """Bytes of a thread that registers have no room for."""
    from tests.backends.triton.launches import resources  # Triton is not everywhere
    from tests.tile.compiled import compiled

    case = getattr(chunk_cases, name)(Drawn(torch.bfloat16), C=C, **SIZES, **CASES[name])
    program = dataclasses.replace(case.program, ahead=1)
    made = compiled(dataclasses.replace(case, program=program), capability)
    return resources(made.asm["cubin"])["STACK"]


def test_batches_of_blocks_compile() -> None:
    assert stack_of("solve_tril", 32, 90) <= 256


@pytest.mark.slow
@pytest.mark.parametrize("capability", [80, 90, 100])
@pytest.mark.parametrize("C", [16, 32, 64])
@pytest.mark.parametrize("name", CASES)
def test_programs_of_chunks_compile(name: str, C: int, capability: int) -> None:
    limit = SPILLED.get(name, 256) if capability == 90 else 4096
    assert stack_of(name, C, capability) <= limit
