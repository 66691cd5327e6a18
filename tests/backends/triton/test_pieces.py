"""What generated files do around their kernels, each function by itself, and the functions of
Triton that kernels share, against formulas of PyTorch in float64."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses import FakeTensorMode

pytest.importorskip("triton")

from archc.runtime import kernels as pieces
from archc.runtime import steps as step
from tests.backends.triton.processes import printed

GPU, OTHER, CPU = torch.device("cuda", 0), torch.device("cuda", 1), torch.device("cpu")
BF16, F16, F32, F64 = torch.bfloat16, torch.float16, torch.float32, torch.float64


def on(
    device: torch.device, dtype: torch.dtype = F32, count: int = 1, learns: bool = False
) -> torch.Tensor:
    """A tensor without numbers, so that no GPU is needed."""
    with FakeTensorMode():
        return torch.empty(count, device=device, dtype=dtype, requires_grad=learns)


# --- where kernels run --------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [F32, BF16, F16])
def test_kernels_run_on_one_gpu_in_their_dtypes(dtype: torch.dtype) -> None:
    assert pieces.by_kernels(16, on(GPU, dtype)) and step.on_gpu(on(GPU, dtype))
    for chunk in (32, 64):
        assert pieces.by_kernels(chunk, on(GPU, dtype), on(GPU))
    assert not [chunk for chunk in (1, 8, 15, 17, 48, 128) if pieces.by_kernels(chunk, on(GPU))]
    for wrong in (on(CPU, dtype), on(OTHER, dtype), on(GPU, F64), on(GPU, torch.int64)):
        assert not pieces.by_kernels(16, on(GPU, dtype), wrong)
        assert not step.on_gpu(on(GPU, dtype), wrong)
        assert wrong.device == OTHER or not pieces.by_kernels(16, wrong)
        assert wrong.device == OTHER or not step.on_gpu(wrong)


def test_kernels_that_walk_tokens_do_not_learn_and_want_numbers() -> None:
    assert step.by_steps(on(GPU)) and not step.by_steps(on(CPU))
    assert not step.on_gpu(on(GPU), on(GPU, count=0))
    learns = on(GPU), on(GPU, learns=True)
    assert not step.by_steps(*learns) and pieces.needs_gradient(*learns)
    assert not pieces.needs_gradient(on(GPU))
    with torch.no_grad():
        assert step.by_steps(*learns) and not pieces.needs_gradient(*learns)


# --- how large tiles and programs are -----------------------------------------------------------


def test_tiles_are_powers_of_2() -> None:
    """As short as hold a dim, at least what products of matrices take, and at most as is said."""
    for size in range(1, 300):
        wanted = next(2**n for n in range(20) if 2**n >= size)
        assert pieces.block_of(size) == max(16, wanted)
        assert pieces.block_of(size, 64) == min(64, max(16, wanted))
        assert step.step_block(size) == max(16, wanted)
        assert step.step_block(size, 1) == wanted
    assert pieces.block_of(1 << 20) == 1 << 20 and pieces.block_of((1 << 20) + 1) == 1 << 20


@pytest.mark.parametrize(
    ("size", "others", "least", "programs", "wanted"),
    [
        (128, 128, 16, 10_000, 64),  # 8192 numbers
        (128, 64, 16, 10_000, 128),
        (128, 8192, 16, 10_000, 16),  # as little as products take
        (128, 8192, 1, 10_000, 1),
        (128, 64, 16, 4 * 132, 128),
        (128, 64, 16, 4 * 132 - 1, 64),  # a program more for each
        (128, 64, 16, 2 * 132, 64),
        (128, 64, 16, 1, 16),
        (96, 64, 16, 176, 32),  # 176 * 3 programs are 4 a processor
        (128, 64, 1, 1, 16),
        (128, 64, 32, 1, 32),
    ],
)  # fmt: skip
def test_blocks_of_a_state(size: int, others: int, least: int, programs: int, wanted: int) -> None:
    assert step.step_part(size, others, least, programs) == wanted


def test_warps_hold_64_numbers_a_thread_or_a_few_more() -> None:
    found = [step.step_warps(n, 8) for n in (0, 1, 2341, 2342, 4682, 4683, 9363, 9364, 10**6)]
    assert found == [1, 1, 1, 2, 2, 4, 4, 8, 8]
    assert step.step_warps(10**6, 4) == 4


def test_room_of_a_program_that_walks_tokens() -> None:
    assert step.step_fits(1 << 17, 0, 10**9, F32) and not step.step_fits((1 << 17) + 1, 0, 0, F32)
    room = 227 * 1024 - 16 * 1024
    for dtype, each in ((F32, 8), (BF16, 2), (F16, 2)):
        most = (room - 4 * 100) // each
        assert step.step_fits(1, most, 100, dtype) and not step.step_fits(1, most + 1, 100, dtype)


def test_chunks_are_loaded_ahead_where_there_is_room() -> None:
    def stages(dtype: torch.dtype, *loaded: int) -> int:
        found = pieces.settings_of(dtype, 4, *loaded)
        assert found.keys() == {"num_warps", "num_stages"} and found["num_warps"] == 4
        return found["num_stages"]

    assert stages(BF16) == stages(F32) == 1  # it walks nothing
    assert [stages(BF16, n) for n in (1, 77_482, 77_483, 116_224, 116_225, 10**6)] == [
        3, 3, 2, 2, 1, 1,
    ]  # fmt: skip
    assert [stages(F32, n) for n in (32_768, 32_769, 49_152, 49_153)] == [3, 2, 2, 1]
    assert stages(BF16, 77_000, 483) == 2


def test_how_kernels_count() -> None:
    assert pieces.narrowest(on(CPU, F32), on(CPU, BF16), on(CPU, F64)) == BF16
    assert pieces.narrowest(on(CPU, F16), on(CPU, F32), on(CPU, BF16)) == F32
    assert [pieces.sums_of(dtype) for dtype in (F32, BF16, F16)] == [F64, F32, F32]
    for dtype in (BF16, F16, F32):
        assert step.step_dtype(dtype) == dtype
    assert step.step_dtype(F64) == F32
    assert pieces.processors_of(CPU) == 0 and pieces.chunks_of_segment(1, 10_000, CPU) == 0


# --- pools of states ----------------------------------------------------------------------------


def test_memory_of_ones_own() -> None:
    x = torch.randn(3, 4)
    kept = pieces.own(x.mT, F32)
    assert kept.is_contiguous() and torch.equal(kept, x.mT) and not step.shares_memory(kept, x)
    assert not step.shares_memory(pieces.own(x, F32), x)
    assert step.shares_memory(x, x[1:]) and not step.shares_memory(x, x.clone())
    assert not step.shares_memory(x, None)


@pytest.mark.parametrize("dtype", [F32, BF16, F64])
def test_rows_of_a_pool(dtype: torch.dtype) -> None:
    """Negative: zeros to begin with, and nothing is written."""
    pool = torch.randn(5, 2, 3).to(dtype)
    index = torch.tensor([4, -1, 0])
    wide = F64 if dtype == F64 else F32
    found = step.rows_of_pool(pool, index, 3)
    assert found.dtype == wide
    assert torch.equal(found, torch.stack([pool[4], torch.zeros_like(pool[0]), pool[0]]).to(wide))
    assert torch.equal(step.rows_of_pool(pool, None, 2), pool[:2].to(wide))
    for rows, count in ((index, 3), (None, 3)):
        into, new = pool.clone(), torch.randn(count, 2, 3)
        step.rows_to_pool(into, rows, new)
        wanted = pool.clone()
        for row, value in zip([4, None, 0] if rows is not None else range(3), new, strict=True):
            if row is not None:
                wanted[row] = value.to(dtype)
        assert torch.equal(into, wanted)


# --- functions of Triton ------------------------------------------------------------------------


def test_functions_that_kernels_share() -> None:
    """In a process of its own, under the interpreter."""
    found = dict(line.rsplit(": ", 1) for line in printed("interpreted_pieces", "every"))
    assert len(found) >= 25
    assert not {what: error for what, error in found.items() if not float(error) < 2e-6}
