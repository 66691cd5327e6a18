"""Names of layers inside modules: one rule, and state dicts of the names before it."""

from __future__ import annotations

import copy

import pytest
import torch

import archc
from archc.ir.paths import former_paths, present_name, snake

NAMES = {
    "KDA": "kda", "SwiGLU": "swiglu", "MoE": "moe", "GPTBlock": "gpt_block",
    "MoEBlock": "moe_block",
    "GatedMoE": "gated_moe", "GatedDeltaNet": "gated_delta_net", "SelectiveSSM": "selective_ssm",
    "GatedShortConv": "gated_short_conv", "Mamba2SSD": "mamba2_ssd", "RWKV7": "rwkv7",
    "SwiGLUBlock": "swiglu_block", "XLSTMBlock": "xlstm_block", "my_Layer": "my_layer",
}  # fmt: skip

TEXT = """
layer GatedMoE(d):
    input x[d]
    param W[d, d']
    output y = x @ W
layer SharedMoE(d):
    input x[d]
    param b[d] = 0
    output y = GatedMoE(d)(x) + b
layer Model(d):
    input x[d]
    h = SharedMoE(d)(x)
    repeat 2 as l:
        h = GatedMoE(d)(h) + GatedMoE(d)(h)
    output h
"""


@pytest.mark.parametrize(("name", "path"), NAMES.items())
def test_the_rule(name: str, path: str) -> None:
    assert snake(name) == path


def test_state_dicts_of_former_names_are_loaded() -> None:
    spec = archc.parse(TEXT)
    model = spec.module(d=3)
    own = model.state_dict()
    names = {
        "shared_moe.b", "shared_moe.gated_moe.W",
        *(f"layers.{i}.{n}.W" for i in range(2) for n in ("gated_moe", "gated_moe_2")),
    }  # fmt: skip
    assert {*own} == names
    assert former_paths(spec.layer) == {"shared_moe": "sharedmoe"}
    former = {
        name.replace("gated_moe", "gatedmoe").replace("shared_moe", "sharedmoe"): value + 1
        for name, value in own.items()
    }
    assert {present_name(spec.layer, name) for name in former} == names
    for other in (spec.module(d=3), copy.deepcopy(model)):
        other.load_state_dict(former)
        assert all(torch.equal(x, own[n] + 1) for n, x in other.state_dict().items())
    with pytest.raises(RuntimeError, match=r"shared_moe\.c"):
        model.load_state_dict({**former, "sharedmoe.c": torch.zeros(3)})
    model.load_state_dict(own)  # of today's names, as ever
