"""RWKV-7's time mixing: fla's step-by-step memory between torch layers."""

from __future__ import annotations

import math

import torch
from fla.ops.generalized_delta_rule.dplr.naive import dplr_recurrence
from torch import Tensor
from torch.nn.functional import group_norm, normalize, pad

from tests.specs.references.layers import Weights, join, project


def time_mixing(weights: Weights, x: Tensor, eps: float) -> Tensor:
    """`RWKV7`, [B, T, d] to [B, T, d]; the memory is computed in float32."""
    shifted = pad(x, (0, 0, 1, -1))
    at = {name: torch.lerp(x, shifted, weights[f"mu_{name}"]) for name in "rwkvag"}
    r, u, v = (project(at[name], weights[f"W_{name}"]) for name in "rkv")
    low = torch.tanh(at["w"] @ weights["W_w"])
    log_w = -math.exp(-0.5) * torch.sigmoid(weights["w_0"] + project(low, weights["W_w2"]))
    a = torch.sigmoid(weights["a_0"] + project(at["a"] @ weights["W_a"], weights["W_a2"]))
    g = project(torch.sigmoid(at["g"] @ weights["W_g"]), weights["W_g2"])
    kappa = normalize(u * weights["xi"], dim=-1)
    k = torch.lerp(u, u * a, weights["alpha"])
    o = memory(r, log_w, k, v, kappa, a)
    normed = group_norm(o.flatten(0, 1).flatten(1), o.shape[2], eps=eps).reshape(o.shape)
    bonus = (r * k * weights["rho"]).sum(-1, keepdim=True) * v
    return join(g * (normed * weights["gain"] + weights["bias"] + bonus), weights["W_o"])


def memory(r: Tensor, log_w: Tensor, k: Tensor, v: Tensor, kappa: Tensor, a: Tensor) -> Tensor:
    """All [B, T, H, K]; fla always scales by 1/sqrt(K), which is undone here."""
    values = (r * r.shape[-1] ** 0.5, k, v, -kappa, kappa * a, log_w)
    o, _ = dplr_recurrence(*(value.transpose(1, 2).float() for value in values))
    return o.transpose(1, 2).to(r)
