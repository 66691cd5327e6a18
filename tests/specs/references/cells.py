"""Recurrent cells: torch's LSTM, and the package xlstm's sLSTM and mLSTM in plain PyTorch."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from xlstm.blocks.mlstm.backends import parallel_stabilized_simple, recurrent_step_stabilized_simple
from xlstm.blocks.slstm.src.vanilla import slstm_forward
from xlstm.blocks.slstm.src.vanilla.slstm import slstm_forward_pointwise


def lstm_weights(module: nn.LSTM) -> dict[str, Tensor]:
    """Parameters of `LSTM`: torch keeps the gates i, f, g, o in one matrix, and two biases."""
    weights = {}
    D = module.hidden_size
    bias = (module.bias_ih_l0 + module.bias_hh_l0).detach()
    for index, gate in enumerate("ifgo"):
        rows = slice(index * D, (index + 1) * D)
        weights[f"W_{gate}"] = module.weight_ih_l0.detach()[rows].T
        weights[f"R_{gate}"] = module.weight_hh_l0.detach()[rows]
        weights[f"b_{gate}"] = bias[rows]
    return weights


def slstm(weights: dict[str, Tensor], x: Tensor) -> Tensor:
    """`SLSTM` with sigmoid forget gates: [B, T, d] to h [B, T, H, D]."""
    H, D = weights["b_i"].shape
    B, T, _ = x.shape
    gates = "ifzo"
    inputs = torch.stack([torch.einsum("btd,dhk->tbhk", x, weights[f"W_{g}"]) for g in gates], 2)
    recurrent = torch.cat([weights[f"R_{g}"] for g in gates], 1)
    bias = torch.cat([weights[f"b_{g}"].flatten() for g in gates])
    states, _, _ = slstm_forward(
        inputs.reshape(T, B, -1), x.new_zeros(4, B, H * D), recurrent, bias, slstm_forward_pointwise
    )
    return states[0, 1:].transpose(0, 1).reshape(B, T, H, D)


def mlstm(q: Tensor, k: Tensor, v: Tensor, li: Tensor, f: Tensor) -> Tensor:
    """`MLSTM`'s memory in parallel form, [B, T, H, D]; f before its sigmoid, k not yet scaled."""
    q, k, v, li, f = (value.transpose(1, 2) for value in (q, k, v, li, f))
    o = parallel_stabilized_simple(q, k, v, li[..., None], f[..., None], eps=0.0)
    return o.transpose(1, 2)


def mlstm_steps(
    q: Tensor, k: Tensor, v: Tensor, li: Tensor, f: Tensor, start: float, eps: float
) -> tuple[Tensor, ...]:
    """The same token by token from m = start; also the final states C, n and m."""
    B, T, H, D = q.shape
    state = (q.new_zeros(B, H, D, D), q.new_zeros(B, H, D, 1), q.new_full((B, H, 1, 1), start))
    outputs = []
    for t in range(T):
        now = [value[:, t, :, None].clone() for value in (q, k, v)]
        gates = [value[:, t, :, None, None] for value in (li, f)]
        h, state = recurrent_step_stabilized_simple(*state, *now, *gates, eps=eps)
        outputs.append(h[:, :, 0])
    return torch.stack(outputs, 1), state[0], state[1][..., 0], state[2][..., 0, 0]
