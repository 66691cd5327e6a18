"""How kernels of folds are launched, and what they are given."""

from __future__ import annotations

import pytest
import torch

from archc.runtime.folds import copied_vectors, is_copied, part_blocks, side_by_side


def test_a_sequence_without_tokens() -> None:
    """Packed sequences that are run one length after the other may have one."""
    cpu = torch.device("cpu")
    rows, columns, parts, _ = part_blocks(torch.float32, 0, 4, 0, cpu, 32)
    assert rows >= 16 and columns >= 16 and parts == 1


@pytest.mark.parametrize(("shape", "dim"), [((7, 3), 0), ((3, 7), 1), ((2, 7, 3), 1)])
def test_numbers_of_a_table_lie_side_by_side(shape: tuple[int, ...], dim: int):
    table = torch.randn(shape)
    found = side_by_side(table, dim)
    assert torch.equal(found, table) and found.stride(dim) == 1


def test_vectors_that_the_copy_engine_reads():
    whole = torch.zeros(2, 5, 24, dtype=torch.bfloat16)
    assert is_copied(whole) and is_copied(whole[:, 1:, 8:]) and is_copied(whole[:1, :2])
    assert not is_copied(whole[..., 1:]) and not is_copied(torch.zeros(5, 20).bfloat16())
    assert is_copied(whole[:1].expand(1, 5, 24)) and not is_copied(whole[:1].expand(2, 5, 24))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_vectors_are_laid_as_the_copy_engine_reads_them(dtype: torch.dtype):
    """One sequence, rows that are cut out of longer ones, lengths that are no multiple of 16 bytes,
    another dtype, and elements that lie apart."""
    whole = torch.randn(2, 5, 22)
    for given in (whole, whole[:1, :, :21].to(dtype), whole.to(dtype).mT[:, :6]):
        found = copied_vectors(given, dtype)
        assert torch.equal(found, given.to(dtype)) and is_copied(found) and found.stride(-1) == 1
    as_it_is = torch.zeros(2, 5, 24, dtype=dtype)
    assert copied_vectors(as_it_is, dtype) is as_it_is
