"""transformers' Mamba, with weights named as in `Mamba`."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import MambaConfig
from transformers.models.mamba.modeling_mamba import MambaMixer

from tests.specs.references.weights import into, randomise


def mixer(d: int, D: int, N: int, r: int, width: int, seed: int) -> MambaMixer:
    """A small mixer; its scan computes in float32."""
    config = MambaConfig(
        hidden_size=d,
        intermediate_size=D,
        expand=D // d,
        state_size=N,
        time_step_rank=r,
        conv_kernel=width,
        num_hidden_layers=1,
    )
    return randomise(MambaMixer(config, layer_idx=0), seed)


def output(module: MambaMixer, x: Tensor) -> Tensor:
    """[B, T, d] to [B, T, d]."""
    with torch.no_grad():
        return module(x)


def weights(module: MambaMixer) -> dict[str, Tensor]:
    """Parameters of `Mamba`; its reference keeps several of them in one matrix."""
    D, r, N = module.intermediate_size, module.time_step_rank, module.ssm_state_size
    W_u, W_z = into(module.in_proj, 2, D).unbind(1)
    W_r, W_B, W_C = into(module.x_proj, r + 2 * N).split([r, N, N], dim=-1)
    return {
        "W_u": W_u,
        "W_z": W_z,
        "W_r": W_r,
        "W_B": W_B,
        "W_C": W_C,
        "W_dt": into(module.dt_proj, D),
        "b_dt": module.dt_proj.bias.detach(),
        "W_o": into(module.out_proj, module.hidden_size),
        "c_u": module.conv1d.weight.detach()[:, 0],
        "b_u": module.conv1d.bias.detach(),
        "A_log": module.A_log.detach(),
        "skip": module.D.detach(),
    }
