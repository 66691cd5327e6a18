"""Mixture of memories, token by token; a memory that a token is not sent to is left alone."""

from __future__ import annotations

import torch
from torch import Tensor

from tests.specs.references.layers import Weights, join, rms_norm, unit


def mixture(
    weights: Weights, x: Tensor, n: int, eps: float, linear: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """`MoM`: y [B, T, d], the final memories [B, N, H, K, V], and who was chosen [B, T, N]."""
    B, T, _ = x.shape
    N = weights["W_r"].shape[1]
    _, H, V = weights["W_v0"].shape
    p = (x @ weights["W_r"]).softmax(-1)
    chosen = torch.zeros(B, T, N, dtype=torch.bool)
    memories = [x.new_zeros(N + 1, H, weights["W_k0"].shape[2], V) for _ in range(B)]
    o = x.new_zeros(B, T, H, V)
    for b in range(B):
        for t in range(T):
            best = p[b, t].argsort(descending=True)[:n]
            chosen[b, t, best] = True
            q = unit(torch.einsum("d,dhk->hk", x[b, t], weights["W_q"]))
            read = memories[b][N] = _written(memories[b][N], _own(weights, None), x[b, t], linear)
            for e in best.tolist():
                memories[b][e] = _written(memories[b][e], _own(weights, e), x[b, t], linear)
                read = read + p[b, t, e] / p[b, t, best].sum() * memories[b][e]
            o[b, t] = torch.einsum("hk,hkv->hv", q, read)
    y = join(rms_norm(o, 2, eps) * weights["gain"], weights["W_o"])
    return y, torch.stack(memories)[:, :N], chosen


def _own(weights: Weights, e: int | None) -> Weights:
    """The weights of memory e, or of the shared one."""
    names = [name for name in "kvab" if f"W_{name}" in weights]
    if e is None:
        return {name: weights[f"W_{name}0"] for name in names}
    return {name: weights[f"W_{name}"][e] for name in names}


def _written(S: Tensor, own: Weights, x: Tensor, linear: bool) -> Tensor:
    """S [H, K, V] after token x [d]."""
    k = unit(torch.einsum("d,dhk->hk", x, own["k"]))
    v = torch.einsum("d,dhv->hv", x, own["v"])
    if linear:
        return S + k[:, :, None] * v[:, None]
    decayed = torch.sigmoid(x @ own["a"])[:, None, None] * S
    error = v - torch.einsum("hkv,hk->hv", decayed, k)
    write = torch.sigmoid(x @ own["b"])[:, None] * k
    return decayed + write[:, :, None] * error[:, None]
