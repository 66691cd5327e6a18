"""Attentions of papers that are in no bundle, beside what their authors' formulas say in torch."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from tests.newcomers.agreement import held

Values = Mapping[str, Tensor]


def causal(scores: Tensor) -> Tensor:
    """Softmax of [..., T, T] over the past and the token itself."""
    ahead = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    return scores.masked_fill(ahead, -torch.inf).softmax(-1)


def rotated(x: Tensor, base: float) -> Tensor:
    """[B, T, H, R] turned by the token's position, the two halves as pairs."""
    half = x.shape[-1] // 2
    rates = base ** (-2 * torch.arange(half, dtype=x.dtype) / x.shape[-1])
    angle = (torch.arange(x.shape[1], dtype=x.dtype)[:, None] * rates)[:, None]
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()], -1)


def test_a_fused_projection_and_a_rotation_of_part_of_a_head() -> None:
    """As transformers' GPTNeoXAttention computes it."""

    def reference(inputs: Values, p: Values) -> Tensor:
        x = inputs["x"]
        z = torch.einsum("btd,dhc->bthc", x, p["W"]) + p["b"]
        q, k, v = z.chunk(3, -1)
        q = torch.cat([rotated(q[..., :2], 10000.0), q[..., 2:]], -1)
        k = torch.cat([rotated(k[..., :2], 10000.0), k[..., 2:]], -1)
        weights = causal(torch.einsum("bthk,bshk->bhts", q, k) / 5**0.5)
        o = torch.einsum("bhts,bshk->bthk", weights, v).flatten(2)
        return torch.nn.functional.linear(o, p["W_o"], p["b_o"])

    held("neox_attention", reference, {"x": [2, 5, 10]}, d=10, H=2, R=2, N=3)
