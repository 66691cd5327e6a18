"""Gates of layers as they begin: weights drawn as those of the public layers."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

import archc
from archc.ir.initial import sample_layer
from archc.lowering.row_decays import LIMIT

SIZES = {
    "kda": {"d": 512, "H": 32, "K": 16, "V": 16, "r": 128},
    "gated_delta": {"d": 512, "H": 32, "K": 16, "V": 16},
    "gated_delta_product": {"d": 512, "H": 32, "K": 16, "V": 16, "n": 2},
    "gla": {"d": 512, "H": 8, "K": 16, "V": 16, "r": 16},
    "mamba2": {"d": 512, "H": 32, "P": 16, "N": 16},
    "delta": {"d": 512, "H": 32, "K": 16, "V": 16},
    "mesa": {"d": 512, "H": 32, "K": 16},
}
GATES = {
    "kda": {"W_f_down": 512, "W_f_up": 128, "W_g_down": 512, "W_g_up": 128, "W_beta": 512},
    "gated_delta": {"W_f": 512, "W_g": 512, "W_beta": 512},
    "gated_delta_product": {"W_f": 512, "W_g": 512, "W_beta": 512},
    "gla": {"W_a1": 512, "W_a2": 16, "b_a": 16, "W_r": 512},
    "mamba2": {"W_dt": 512},
    "delta": {"W_beta": 512},
    "mesa": {"W_b": 512, "W_g": 512, "b_b": 512, "b_g": 512},
}
"""How much each matrix of a gate, or its bias, goes with in a product, which is `in_features`."""


def fresh(name: str) -> dict[str, Tensor]:
    """The parameters of a layer, as they begin."""
    return sample_layer(archc.load(name).layer, SIZES[name], dtype=torch.float32)


@pytest.mark.parametrize("name", GATES)
def test_gates_begin_as_torch_s_linear_layers(name: str) -> None:
    params = fresh(name)
    for matrix, size in GATES[name].items():
        wanted, found = nn.Linear(size, 1000), params[matrix]
        assert found.abs().max() <= size**-0.5, matrix
        spread = wanted.weight.std().item()
        assert found.std().item() == pytest.approx(spread, rel=3 * found.numel() ** -0.5), matrix


def test_no_chunk_of_a_fresh_kda_layer_is_hard() -> None:
    """No channel forgets so much in half a chunk that its pairs need the tree."""
    params = fresh("kda")
    x = torch.randn(64, 32, 512, generator=torch.Generator().manual_seed(1))
    change = (x @ params["W_f_down"] @ params["W_f_up"].flatten(1)).unflatten(-1, (32, 16))
    rates = params["A_log"].exp()[:, None] * softplus(change + params["dt_bias"])
    assert LIMIT / 2 < rates.sum(1).max() < LIMIT
