"""transformers' Mamba-2 with one group of B and C, with weights named as in `Mamba2`."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import Mamba2Config
from transformers.models.mamba2.modeling_mamba2 import Mamba2Mixer

from tests.specs.references.weights import into, out_of, randomise


def mixer(d: int, H: int, P: int, N: int, width: int, seed: int) -> Mamba2Mixer:
    """A small mixer; its scan computes in float32."""
    config = Mamba2Config(
        hidden_size=d,
        num_heads=H,
        head_dim=P,
        expand=H * P // d,
        state_size=N,
        n_groups=1,
        conv_kernel=width,
        chunk_size=8,
        num_hidden_layers=1,
    )
    return randomise(Mamba2Mixer(config, layer_idx=0), seed)


def output(module: Mamba2Mixer, x: Tensor) -> Tensor:
    """[B, T, d] to [B, T, d]."""
    with torch.no_grad():
        return module(x)


def weights(module: Mamba2Mixer) -> dict[str, Tensor]:
    """Parameters of `Mamba2`; its reference keeps several of them in one matrix."""
    H, P, N = module.num_heads, module.head_dim, module.ssm_state_size
    every = [H * P, H * P, N, N, H]
    W_z, W_u, W_B, W_C, W_dt = into(module.in_proj, sum(every)).split(every, dim=-1)
    c_u, c_B, c_C = module.conv1d.weight.detach()[:, 0].split(every[1:4])
    b_u, b_B, b_C = module.conv1d.bias.detach().split(every[1:4])
    return {
        "W_u": W_u.unflatten(-1, (H, P)),
        "W_z": W_z.unflatten(-1, (H, P)),
        "W_B": W_B,
        "W_C": W_C,
        "W_dt": W_dt,
        "W_o": out_of(module.out_proj, H, P),
        "gain": module.norm.weight.detach().reshape(H, P),
        "c_u": c_u.reshape(H, P, -1),
        "b_u": b_u.reshape(H, P),
        "c_B": c_B,
        "c_C": c_C,
        "b_B": b_B,
        "b_C": b_C,
        "skip": module.D.detach(),
        "A_log": module.A_log.detach(),
        "b_dt": module.dt_bias.detach(),
    }
