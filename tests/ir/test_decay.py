"""Which parameters decay in training: found from what is done with them."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import archc
from archc.ir.decay import maps_and_tables

TEXT = """
layer Every(d, H, K, n):
    input x[d]
    param W[d, H, K]; R[H, K, K']; b, gain[H, K]; a[d]; P[n, d]; W_o[H, K, d]; A[K, K']
    param c[d, 3]; D[H, K]
    u = shortconv(x + P[t], c)
    q = (u @ W + b) * gain
    chunk: sequential
    recurrence h[K] over H:
        h[t] = tanh(q + R @ h[t-1]) * exp(-exp(D))
        o    = h[t]
    z = o @ A.T
    output y[d] = (z @ W_o) * sigmoid(u @ a)
"""


def test_maps_filters_and_tables_decay() -> None:
    layer = archc.parse(TEXT).layer
    found = maps_and_tables(layer)
    names = {param.name for id, param in layer.params if id in found}
    assert names == {"W", "R", "P", "W_o", "A", "c"}


@pytest.mark.parametrize("linear", [False, True])
def test_groups_of_a_model(linear: bool) -> None:
    layer = archc.parse(TEXT).module(d=4, H=2, K=3, n=5, nn_linear=linear)
    own = copy.deepcopy(layer)  # where attributes of parameters are lost
    own.c.requires_grad_(False)
    model = nn.ModuleDict({"mixer": own, "norm": nn.LayerNorm(4), "head": nn.Linear(4, 2)})
    decaying, rest = archc.parameter_groups(model, 0.1)
    assert (decaying["weight_decay"], rest["weight_decay"]) == (0.1, 0.0)
    names = {id(p): name for name, p in model.named_parameters()}
    found = [{names[id(p)].removesuffix(".weight") for p in g["params"]} for g in (decaying, rest)]
    assert found[0] == {"mixer.W", "mixer.R", "mixer.P", "mixer.W_o", "mixer.A", "head"}
    assert found[1] == {
        "mixer.b", "mixer.gain", "mixer.a", "mixer.D", "norm", "norm.bias", "head.bias",
    }  # fmt: skip
    marked = {n for n, p in layer.named_parameters() if getattr(p, "_no_weight_decay", False)}
    assert marked == {"b", "gain", "a", "D"}
    torch.optim.AdamW([decaying, rest])
