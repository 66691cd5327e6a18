"""Kernels of packed token regions as machine code, ahead of time: nothing spills."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import archc
from archc.autodiff.reverse import gradient
from archc.compile import lowered
from archc.lowering.token import BLOCK_T, IO, Lowered, RegionKernels, lower
from archc.regions.gradient import gradient_of
from tests.lowering.packed import PackedTrial, packed_trial
from tests.lowering.regions import regions_of, resolved
from tests.tile.cases import Case

pytest.importorskip("triton")

DTYPES = {"i64": torch.int64, "f32": torch.float32, IO: torch.bfloat16}
KINDS = ("values", "gradient")


def needed(trial: PackedTrial, made: Lowered, optional: str) -> dict[str, int]:
    """The registers and the local memory of a thread, of a token of a head a turn of one warp; with
    the optional buffers whose names begin so."""
    from tests.backends.triton.launches import resources  # Triton is not everywhere
    from tests.tile.compiled import compiled

    sizes, known = trial.launch(made)
    known |= {BLOCK_T: 1, IO: "bf16", "B_K": 128}
    program = replace(made.program, warps=1)
    there = [b for b in program.buffers if not b.optional or b.name.startswith(optional)]
    tensors = {b.name: torch.empty(0, dtype=DTYPES[b.dtype]) for b in there}
    case = Case(program, tensors, sizes, {n: known[n] for n in program.constants}, {})
    return resources(compiled(case).asm["cubin"])


def kernels_of(spec: str, region: str) -> tuple[PackedTrial, RegionKernels]:
    """A region of a bundled layer with heads of 128, for packed sequences."""
    layer = lowered(archc.load(spec).layer)
    (found,) = [each for each in regions_of(layer) if each.name == region]
    sizes = resolved(layer, {"d": 4096, "H": 32, "K": 128, "V": 128})
    trial = packed_trial(found, sizes, (64, 64))
    made = lower(trial.region, gradient_of(trial.region, gradient))
    assert isinstance(made, RegionKernels)
    return trial, made


@pytest.mark.slow
@pytest.mark.parametrize("optional", ["borders", "no buffer", "q_raw_past", ""])
def test_convolutions_of_packed_sequences_compile(optional: str) -> None:
    trial, made = kernels_of("delta", "q")
    for kind, program in zip(KINDS, made.programs, strict=True):
        used = needed(trial, program, optional)
        assert used["STACK"] == 0, (kind, used)
