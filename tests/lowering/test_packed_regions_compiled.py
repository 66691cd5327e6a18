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
from archc.regions.packed import packed
from tests.lowering.packed import PackedTrial, packed_trial
from tests.lowering.regions import regions_of, resolved
from tests.tile.cases import Case

pytest.importorskip("triton")

DTYPES = {"i64": torch.int64, "f32": torch.float32, IO: torch.bfloat16}
TILES = {"values": (16, 4), "gradient": (4, 2), "gradient_2": (16, 4)}
"""Tokens of a block and warps, as a launch has them for heads of 128 and four taps."""


def needed(trial: PackedTrial, made: Lowered, kind: str) -> dict[str, int]:
    """The registers and the local memory of a thread."""
    from tests.backends.triton.launches import resources  # Triton is not everywhere
    from tests.tile.compiled import compiled

    block, warps = TILES[kind]
    sizes, known = trial.launch(made)
    known |= {BLOCK_T: block, IO: "bf16", "B_K": 128}
    program = replace(made.program, warps=warps)
    tensors = {b.name: torch.empty(0, dtype=DTYPES[b.dtype]) for b in program.buffers}
    case = Case(program, tensors, sizes, {n: known[n] for n in program.constants}, {})
    return resources(compiled(case).asm["cubin"])


def kernels_of(spec: str, region: str) -> tuple[PackedTrial, RegionKernels]:
    """A region of a bundled layer with heads of 128, for packed sequences."""
    layer = lowered(archc.load(spec).layer)
    (found,) = [each for each in regions_of(layer) if each.name == region]
    sizes = resolved(layer, {"d": 4096, "H": 32, "K": 128, "V": 128})
    trial = packed_trial(found, sizes, (64, 64))
    made = lower(packed(found), gradient_of(packed(found), gradient))
    assert isinstance(made, RegionKernels)
    return trial, made


@pytest.mark.slow
def test_convolutions_of_packed_sequences_compile() -> None:
    trial, made = kernels_of("delta", "q")
    kinds = dict(zip(TILES, made.programs, strict=True))
    for kind, program in kinds.items():
        used = needed(trial, program, kind)
        assert used["STACK"] == 0, (kind, used)
