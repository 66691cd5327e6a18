"""The GLA layer and block, written from the formulas of the paper in plain loops."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import layer_norm, silu


def layer(weights: dict[str, Tensor], x: Tensor, tau: float, eps: float) -> Tensor:
    """`GLA`: [B, T, d] to [B, T, d]; S_t = Diag(alpha_t) S_{t-1} + k_t v_t^T for each head."""
    _, H, K = weights["W_q"].shape
    V = weights["W_v"].shape[-1]
    forget = torch.sigmoid(
        torch.einsum("btr,rhk->bthk", x @ weights["W_a1"], weights["W_a2"]) + weights["b_a"]
    ) ** (1 / tau)
    y = torch.zeros_like(x)
    for batch in range(x.shape[0]):
        for head in range(H):
            S = x.new_zeros(K, V)
            for t in range(x.shape[1]):
                token = x[batch, t]
                q, k, v, r = (
                    token @ weights[name][:, head] for name in ("W_q", "W_k", "W_v", "W_r")
                )
                S = torch.diag(forget[batch, t, head]) @ S + torch.outer(k, v)
                o = layer_norm(q @ S, (V,), eps=eps)
                y[batch, t] += (silu(r + weights["b_r"][head]) * o) @ weights["W_o"][head]
    return y


def block(
    weights: dict[str, Tensor], x: Tensor, tau: float, eps: float, second: Tensor | None = None
) -> Tensor:
    """`GLABlock`: Y = GLA(LN(X)) + X, then SwiGLU(LN(Y)) + Y; `second` stands in for the last Y."""
    d = x.shape[-1]
    mixer = {name.removeprefix("gla."): value for name, value in weights.items()}
    y = x + layer(mixer, layer_norm(x, (d,), weights["n1"], weights["b1"], eps), tau, eps)
    z = layer_norm(y, (d,), weights["n2"], weights["b2"], eps)
    hidden = silu(z @ weights["swiglu.W_gate"]) * (z @ weights["swiglu.W_in"])
    return (y if second is None else second) + hidden @ weights["swiglu.W_out"]
