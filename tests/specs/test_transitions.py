"""Layers around a memory whose transition is diagonal, or diagonal and of low rank."""

from __future__ import annotations

import torch

import archc
from tests.specs.agreement import agree
from tests.specs.references import mamba, mamba2, rwkv
from tests.specs.references.weights import randomise


def values(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


def test_rwkv7() -> None:
    sizes = {"d": 24, "H": 3, "r_w": 5, "r_a": 4, "r_g": 6, "eps": 1e-3}
    layer = randomise(archc.load("rwkv7").module(**sizes, dtype=torch.float64), seed=0)
    x = values(2, 23, 24).double()
    theirs = rwkv.time_mixing(layer.state_dict(), x, sizes["eps"])
    agree("rwkv7", "fla naive between torch layers", layer(x), theirs)


def test_mamba() -> None:
    sizes = {"d": 12, "D": 24, "N": 5, "r": 3, "width": 4}
    reference = mamba.mixer(**sizes, seed=0)
    layer = archc.load("mamba").module(**sizes)
    layer.load_state_dict(mamba.weights(reference))
    x = values(2, 23, 12)
    agree("mamba", "transformers mamba", layer(x), mamba.output(reference, x))


def test_mamba2() -> None:
    sizes = {"d": 12, "H": 3, "P": 8, "N": 5, "width": 4}
    reference = mamba2.mixer(**sizes, seed=0)
    layer = archc.load("mamba2").module(**sizes)
    layer.load_state_dict(mamba2.weights(reference))
    x = values(2, 23, 12)
    agree("mamba2", "transformers mamba2", layer(x), mamba2.output(reference, x))
