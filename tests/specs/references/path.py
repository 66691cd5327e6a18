"""Attention with forget gates and Householder positions: the formula as a loop, and fla's code.

fla computes in float32, and its naive path attention scales the forget term as well as the scores:
it is called here with scaled queries and a scale of 1.
"""

from __future__ import annotations

import torch
from fla.ops.forgetting_attn.naive import naive_forgetting_attn
from fla.ops.path_attn.naive import naive_path_attn
from torch import Tensor
from torch.nn.functional import logsigmoid

from tests.specs.references.layers import Weights, join, project, short_conv, unit

Parts = dict[str, Tensor]


def parts(weights: Weights, x: Tensor) -> Parts:
    """q, k, v of [B, T, H, K]; of w, beta and log_f [B, T, H] what the weights have."""
    made = {name: project(x, weights[f"W_{name}"]) for name in "qkv"}
    if "c_w" in weights:
        low = project(project(x, weights["W_low"]), weights["W_w"])
        made["w"] = unit(short_conv(low, weights["c_w"]))
        made["beta"] = 2 * torch.sigmoid(project(x, weights["u_b"]) + weights["b_b"])
    if "u_f" in weights:
        made["log_f"] = logsigmoid(project(x, weights["u_f"]) + weights["b_f"])
    return made


def by_formula(weights: Weights, x: Tensor) -> Tensor:
    """The layer for [B, T, d], one token, head and pair at a time."""
    p = parts(weights, x)
    o = torch.zeros_like(p["v"])
    for b, t, h in torch.cartesian_prod(*map(torch.arange, o.shape[:3])).tolist():
        scores = [_score(p, b, s, t, h) for s in range(t + 1)]
        o[b, t, h] = torch.stack(scores).softmax(0) @ p["v"][b, : t + 1, h]
    return join(o, weights["W_o"])


def _score(p: Parts, b: int, s: int, t: int, h: int) -> Tensor:
    """k_s' H_(s+1) ... H_t q_t / sqrt(K) + log f_(s+1) + ... + log f_t."""
    row, forget = p["k"][b, s, h], p["k"].new_zeros(())
    for r in range(s + 1, t + 1):
        if "w" in p:
            w = p["w"][b, r, h]
            row = row - p["beta"][b, r, h] * (row @ w) * w
        if "log_f" in p:
            forget = forget + p["log_f"][b, r, h]
    return row @ p["q"][b, t, h] / row.numel() ** 0.5 + forget


def by_fla(weights: Weights, x: Tensor) -> Tensor:
    """The same with fla's naive attention in the middle."""
    p = parts(weights, x)
    q, k, v = p["q"], p["k"], p["v"]
    if "w" not in p:
        return join(naive_forgetting_attn(q, k, v, p["log_f"]).to(v), weights["W_o"])
    log_f = p.get("log_f", torch.zeros_like(p["beta"]))
    scaled = q / q.shape[-1] ** 0.5
    o = naive_path_attn(scaled, k, v, p["w"], p["beta"], log_f, scale=1.0, chunk_size=8)
    return join(o, weights["W_o"])
