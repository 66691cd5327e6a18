"""Sizes of layers that are applied in place, which are quotients and shares of others."""

from __future__ import annotations

import pytest
import torch

import archc
from archc.diagnostics import ArchError

INNER = """layer Inner(K{}, N = K - R):
    input x[K]
    a, b = x by R, N
    output y[K] = join[R, N as K](2 * a, b)
"""
SHARES = {
    ", R = K / 2": "layer Outer(K):\n    input x[K]\n    output y[K] = Inner(K)(x)\n",
    ", part = 1, R = part * K": (
        "layer Outer(K, part = 1 / 2):\n    input x[K]\n    output y[K] = Inner(K, part)(x)\n"
    ),
}


@pytest.mark.parametrize("share", SHARES)
def test_a_part_of_a_dim_is_a_share_of_it(share: str) -> None:
    """A layer without parameters becomes part of the one that applies it, and so do its sizes:
    they are whole numbers there too, or the layer is refused."""
    spec = archc.parse(INNER.format(share) + SHARES[share])
    made = spec.module(K=6)(torch.ones(1, 1, 6))
    assert made.flatten().tolist() == [2, 2, 2, 1, 1, 1]
    with pytest.raises(ArchError, match="is a whole number`, which does not hold"):
        spec.module(K=7)


def test_a_dim_of_a_layer_in_place_is_never_cut_off() -> None:
    text = "layer Inner(K, R = K / 2):\n    input x[K]\n    output y[R] = index[R] * sum[K](x)\n"
    spec = archc.parse(text + "layer Outer(K):\n    input x[K]\n    output y = Inner(K)(x)\n")
    assert spec.module(K=6)(torch.ones(1, 1, 6)).flatten().tolist() == [0, 6, 12]
    with pytest.raises(ArchError, match="`R = K/2 is a whole number`"):
        spec.module(K=7)
