"""Layers of every kind without tokens, without sequences, with fewer tokens than a convolution is
wide, and of zeros: values and gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import archc

HEADS = {"d": 16, "H": 2, "K": 8, "V": 8}
LAYERS: dict[str, dict[str, Any]] = {
    "kda": {**HEADS, "r": 8, "width": 9},
    "mamba": {"d": 16, "D": 32},
    "mlstm": {"d": 16, "H": 2},
    "attention": {"d": 16, "H": 2},
    "window_attention": {"d": 16, "H": 2, "w": 0},
    "path_fox": {"d": 16, "H": 2},
    "nsa": {"d": 16, "H": 16, "G": 1, "n": 50},
    "moe": {"d": 16, "f": 8, "N": 4, "n": 2, "shared": 1},
    "lfm2:GatedShortConv": {"d": 16},
}


@pytest.mark.parametrize("spec", LAYERS)
def test_few_tokens_and_zeros(spec: str) -> None:
    """A window of 0 and more blocks or tokens to choose than there are, too."""
    torch.manual_seed(0)
    layer = archc.load(spec).module(**LAYERS[spec])
    for shape in ((0, 5, 16), (2, 0, 16), (2, 1, 16), (2, 6, 16)):
        x = torch.zeros(shape) if shape[1] == 6 else torch.randn(shape)
        y = layer(x.requires_grad_())
        assert y.shape[:2] == x.shape[:2]
        given = [x, *(p for p in layer.parameters() if p.requires_grad)]
        made = torch.autograd.grad(y.sum(), given, allow_unused=True)
        for found in (y, *(grad for grad in made if grad is not None)):
            assert found.isfinite().all()
        if not x.numel():
            assert not any(grad.any() for grad in made if grad is not None)
