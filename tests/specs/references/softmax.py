"""torch's scaled_dot_product_attention around plain projections."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention


def attention(weights: dict[str, Tensor], x: Tensor) -> Tensor:
    """`Attention` without positions: [B, T, d] to [B, T, d]; groups share keys and values."""
    q = torch.einsum("btd,dhk->bhtk", x, weights["W_q"])
    k = torch.einsum("btd,dgk->bgtk", x, weights["W_k"])
    v = torch.einsum("btd,dgk->bgtk", x, weights["W_v"])
    o = scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    return torch.einsum("bhtk,hkd->btd", o, weights["W_o"])


def cross_attention(weights: dict[str, Tensor], x: Tensor, c: Tensor) -> Tensor:
    """`CrossAttention`: x [B, T, d] reads c [B, M, e]."""
    q = torch.einsum("btd,dhk->bhtk", x, weights["W_q"])
    k = torch.einsum("bme,ehk->bhmk", c, weights["W_k"])
    v = torch.einsum("bme,ehk->bhmk", c, weights["W_v"])
    o = scaled_dot_product_attention(q, k, v)
    return torch.einsum("bhtk,hkd->btd", o, weights["W_o"])


def linear_attention(weights: dict[str, Tensor], x: Tensor) -> Tensor:
    """`FullLinearAttention`, by its formula: every token reads every token, weights sum to 1."""

    def feature(value: Tensor) -> Tensor:
        return torch.nn.functional.elu(value) + 1

    q = feature(torch.einsum("btd,dhk->bhtk", x, weights["W_q"]))
    k = feature(torch.einsum("btd,dhk->bhtk", x, weights["W_k"]))
    v = torch.einsum("btd,dhv->bhtv", x, weights["W_v"])
    p = q @ k.transpose(-1, -2)
    return torch.einsum("bhtv,hvd->btd", (p / p.sum(-1, keepdim=True)) @ v, weights["W_o"])
