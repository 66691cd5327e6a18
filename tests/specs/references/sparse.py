"""Attention to chosen tokens: loops from the formulas, and the naive pieces of fla."""

from __future__ import annotations

import torch
from fla.ops.dsa.naive import naive_dsa
from fla.ops.nsa.naive import naive_nsa_compression, naive_nsa_selection, naive_nsa_topk
from scipy.linalg import hadamard
from torch import Tensor
from torch.nn.functional import kl_div, pad, scaled_dot_product_attention

from tests.specs.references.layers import Weights, join, project, rms_norm

Blocks = list[tuple[int, Tensor, Tensor]]
"""For each compressed block: its last token, its key and its value."""


def nsa(weights: Weights, x: Tensor, stride: int, pick: int, n: int, w: int) -> Tensor:
    """`NSA`, [B, T, d] to [B, T, d], one token and group of heads at a time."""
    q, k, v = (project(x, weights[f"W_{name}"]) for name in "qkv")
    gates = torch.sigmoid(project(x, weights["W_gate"]))
    H, G, T = q.shape[2], k.shape[2], x.shape[1]
    o = x.new_zeros(*q.shape[:3], v.shape[-1])
    for b in range(x.shape[0]):
        for g in range(G):
            heads = slice(g * (H // G), (g + 1) * (H // G))
            keys, values = k[b, :, g], v[b, :, g]
            blocks = _compressed(weights, keys, values, stride)
            for t in range(T):
                scaled = q[b, t, heads] / keys.shape[-1] ** 0.5
                p, cmp = _read_blocks(scaled, blocks, t, v.shape[-1])
                best = _chosen_blocks(p, t, weights["e_k"].shape[0], stride, pick, n)
                tokens = [s for s in range(t + 1) if s // pick in best]
                window = list(range(max(0, t - w + 1), t + 1))
                parts = [cmp, *(_read(scaled, keys, values, at) for at in (tokens, window))]
                gated = gates[b, t, heads].unbind(-1)
                o[b, t, heads] = sum(
                    c[:, None] * part for c, part in zip(gated, parts, strict=True)
                )
    return join(o, weights["W_o"])


def _compressed(weights: Weights, k: Tensor, v: Tensor, stride: int) -> Blocks:
    """Keys and values [T, K] of complete blocks, with positions and a map over all of a block."""
    size = weights["e_k"].shape[0]
    made = []
    for start in range(0, k.shape[0] - size + 1, stride):
        rows = slice(start, start + size)
        key = torch.einsum("sk,skj->j", k[rows] + weights["e_k"], weights["P_k"])
        value = torch.einsum("sv,svj->j", v[rows] + weights["e_v"], weights["P_v"])
        made.append((start + size - 1, key, value))
    return made


def _read_blocks(q: Tensor, blocks: Blocks, t: int, V: int) -> tuple[Tensor, Tensor]:
    """Weights [heads, blocks] of the blocks that are complete at t, and what is read."""
    seen = [(key, value) for end, key, value in blocks if end <= t]
    if not seen:
        return q.new_zeros(q.shape[0], 0), q.new_zeros(q.shape[0], V)
    p = (q @ torch.stack([key for key, _ in seen]).T).softmax(-1)
    return p, p @ torch.stack([value for _, value in seen])


def _chosen_blocks(p: Tensor, t: int, size: int, stride: int, pick: int, n: int) -> set[int]:
    """The n best blocks of `pick` tokens, by eq. 9 and 10 of the paper (its blocks start at 1)."""
    score = {}
    for j in range(t // pick + 1):
        total = 0.0
        for m in range(pick // stride):
            for i in range(size // stride):
                c = pick // stride * (j + 1) - 1 - m - i
                if 0 <= c < p.shape[1]:
                    total += float(p[:, c].sum())
        always = j == 0 or j > t // pick - 2
        score[j] = torch.inf if always else total
    return set(sorted(score, key=lambda j: (-score[j], j))[:n])


def _read(q: Tensor, k: Tensor, v: Tensor, at: list[int]) -> Tensor:
    """[heads, V]: softmax attention to some tokens."""
    if not at:
        return q.new_zeros(q.shape[0], v.shape[-1])
    return (q @ k[at].T).softmax(-1) @ v[at]


def nsa_with_means(weights: Weights, x: Tensor, size: int, n: int, w: int) -> Tensor:
    """The variant that fla has, from its pieces: blocks side by side, compressed to their means."""
    q, k, v = (project(x, weights[f"W_{name}"]).float() for name in "qkv")
    k_c, v_c = _means(k, size), _means(v, size)
    scale = q.shape[-1] ** -0.5
    best = naive_nsa_topk(q, k_c, n, size, scale)
    parts = [
        naive_nsa_compression(q, k_c, v_c, size, scale)[0],
        naive_nsa_selection(q, k, v, best, size, scale),
        _window(q, k, v, w),
    ]
    gates = torch.sigmoid(project(x, weights["W_gate"]))[..., None].unbind(-2)
    mixed = sum(gate * part for gate, part in zip(gates, parts, strict=True))
    return join(mixed, weights["W_o"])


def _means(x: Tensor, size: int) -> Tensor:
    """[B, T, G, K] to the means of its blocks; the last may be shorter, and is never read."""
    short = -x.shape[1] % size
    return pad(x, (0, 0, 0, 0, 0, short)).unflatten(1, (-1, size)).mean(2)


def _window(q: Tensor, k: Tensor, v: Tensor, w: int) -> Tensor:
    """torch's attention to the w latest tokens."""
    near = torch.ones(q.shape[1], q.shape[1], dtype=torch.bool).tril().triu(1 - w)
    heads_first = (value.transpose(1, 2) for value in (q, k, v))
    return scaled_dot_product_attention(*heads_first, near, enable_gqa=True).transpose(1, 2)


def dsa(weights: Weights, x: Tensor, n: int, base: float, eps: float, turned: bool) -> Tensor:
    """`DSA` around fla's indexer and attention, which choose and compute in float32."""
    c_q = rms_norm(x @ weights["W_DQ"], 1, eps) * weights["g_q"]
    c = rms_norm(x @ weights["W_DKV"], 1, eps) * weights["g_kv"]
    q_r, k_r = rotated(project(c_q, weights["W_QR"]), base), rotated(x @ weights["W_KR"], base)
    k_c, v = project(c, weights["W_UK"]), project(c, weights["W_UV"])
    q = torch.cat([project(c_q, weights["W_UQ"]), q_r], -1)
    k = torch.cat([k_c, k_r[:, :, None].expand(*k_c.shape[:3], -1)], -1)
    qi, ki, wi = project(x, weights["W_qi"]), x @ weights["W_ki"], x @ weights["W_w"]
    if turned:
        turn = torch.from_numpy(hadamard(ki.shape[-1])).to(x) / ki.shape[-1] ** 0.5
        qi, ki = qi @ turn, ki @ turn
    return join(naive_dsa(q, k, v, qi, ki, wi, topk=n), weights["W_O"])


def dsa_loss(weights: Weights, x: Tensor, align: Tensor, n: int, base: float, eps: float) -> Tensor:
    """The indexer's loss of each token, by torch's divergence of its two distributions."""
    c_q = rms_norm(x @ weights["W_DQ"], 1, eps) * weights["g_q"]
    c = rms_norm(x @ weights["W_DKV"], 1, eps) * weights["g_kv"]
    q = torch.cat([project(c_q, weights["W_UQ"]), rotated(project(c_q, weights["W_QR"]), base)], -1)
    k_c, k_r = project(c, weights["W_UK"]), rotated(x @ weights["W_KR"], base)
    k = torch.cat([k_c, k_r[:, :, None].expand(*k_c.shape[:3], -1)], -1)
    index = project(x, weights["W_qi"]), x @ weights["W_ki"], x @ weights["W_w"]
    made = []
    for b in range(x.shape[0]):
        for t in range(x.shape[1]):
            qi, ki, wi = (y[b] for y in index)
            score = torch.relu(ki[: t + 1] @ qi[t].T) @ wi[t]
            at = score.topk(min(n, t + 1)).indices
            heads = torch.einsum("hk,shk->hs", q[b, t], k[b, at]) * k.shape[-1] ** -0.5
            summed = heads.softmax(-1).sum(0).detach()
            apart = kl_div(score[at].log_softmax(0), summed / summed.sum(), reduction="sum")
            made.append(align[b, t] * apart)
    return torch.stack(made).view(align.shape)


def rotated(x: Tensor, base: float) -> Tensor:
    """x [B, T, ..., R] turned in the plane of each pair of neighbours, as complex numbers."""
    R = x.shape[-1]
    rate = base ** (-torch.arange(0, R, 2, dtype=x.dtype) / R)
    angle = torch.arange(x.shape[1], dtype=x.dtype)[:, None] * rate
    angle = angle.reshape(x.shape[1], *(1 for _ in x.shape[2:-1]), R // 2)
    pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
    return torch.view_as_real(pairs * torch.polar(torch.ones_like(angle), angle)).flatten(-2)
