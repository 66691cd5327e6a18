"""What the gradients of peers are taken along."""

from __future__ import annotations

import torch
from torch import Tensor

from archc.bench.contenders import Inputs, Made, Peer
from archc.bench.job import BACKWARD
from archc.bench.worker import calls_of


def test_all_peers_have_the_same_slope():
    """Whatever the strides and the dtype of their outputs are."""
    x = torch.randn(2, 5, 3, 4, generator=torch.Generator().manual_seed(0)).bfloat16()

    def plain(inputs: Inputs, final: bool) -> Made:
        return (inputs["q"] * 2,), ()

    def turned(inputs: Inputs, final: bool) -> Made:
        return ((inputs["q"] * 2).transpose(1, 2).contiguous().transpose(1, 2),), ()

    def wide(inputs: Inputs, final: bool) -> Made:
        return (inputs["q"].float() * 2,), ()

    found: list[Tensor] = []
    for sequence in (plain, turned, wide):
        call = calls_of(Peer(sequence), {"q": x}, BACKWARD)
        found.append(call()[0])  # type: ignore[index]
    assert found[0].abs().max() > 0
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])
