"""How kernels of few readers are launched."""

from __future__ import annotations

import torch

from archc.runtime.folds import part_blocks


def test_a_sequence_without_tokens() -> None:
    """Packed sequences that are run one length after the other may have one."""
    cpu = torch.device("cpu")
    rows, columns, parts, _ = part_blocks(torch.float32, 0, 4, 0, cpu, 32)
    assert rows >= 16 and columns >= 16 and parts == 1
