"""`python -m tests.specs.references.kimi_without_fla FILE`: reads sizes from FILE, writes weights,
input and output of one Kimi Delta Attention layer into it, fla being hidden from transformers."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor

from tests.specs.references import apart

apart.hide("fla")

from transformers import KimiLinearConfig  # noqa: E402
from transformers.models.kimi_linear.modeling_kimi_linear import (  # noqa: E402
    KimiLinearDeltaAttention,
)

from tests.specs.references.weights import into, out_of, randomise  # noqa: E402


def run(B: int, T: int, d: int, H: int, K: int, width: int, seed: int) -> dict[str, Any]:
    """A layer with random weights on random input, in float64 (its memory computes in float32)."""
    config = KimiLinearConfig(
        hidden_size=d,
        num_hidden_layers=1,
        layer_types=["linear_attention"],
        linear_num_heads=H,
        linear_head_dim=K,
        linear_conv_kernel_dim=width,
    )
    module = randomise(KimiLinearDeltaAttention(config, layer_idx=0).double(), seed)
    x = torch.randn(B, T, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    with torch.no_grad():
        y = module(x)
    return {"weights": weights(module, H, K), "x": x, "y": y, "eps": config.rms_norm_eps}


def weights(module: KimiLinearDeltaAttention, H: int, K: int) -> dict[str, Tensor]:
    """Parameters of `KDA`; the convolutions of q, k and v are one in the reference."""
    gate = module.forget_gate
    convs = module.conv1d.weight.detach().reshape(3, H, K, -1)
    return {
        "W_q": into(module.q_proj, H, K),
        "W_k": into(module.k_proj, H, K),
        "W_v": into(module.v_proj, H, K),
        "W_o": out_of(module.o_proj, H, K),
        "W_beta": into(module.b_proj, H),
        **dict(zip(("c_q", "c_k", "c_v"), convs, strict=True)),
        "A_log": gate.A_log.detach().reshape(H),
        "dt_bias": gate.dt_bias.detach().reshape(H, K),
        "gain": module.o_norm.weight.detach(),
        "W_f_down": into(gate.f_a_proj, K),
        "W_f_up": into(gate.f_b_proj, H, K),
        "W_g_down": into(module.g_a_proj, K),
        "W_g_up": into(module.g_b_proj, H, K),
    }


if __name__ == "__main__":
    torch.save(run(**torch.load(sys.argv[1])), sys.argv[1])
