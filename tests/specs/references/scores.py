"""torch's scaled_dot_product_attention with changed scores, given to it as biases."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention

from tests.specs.references.layers import Weights, join, project

Heads = tuple[Tensor, Tensor, Tensor]


def heads(weights: Weights, x: Tensor) -> Heads:
    """q, k and v [B, H, T, K]; groups of heads share k and v."""
    q, k, v = (project(x, weights[f"W_{name}"]).transpose(1, 2) for name in "qkv")
    share = q.shape[1] // k.shape[1]
    return q, k.repeat_interleave(share, 1), v.repeat_interleave(share, 1)


def past(T: int) -> Tensor:
    """0 where a token [T, T] may be read, -inf elsewhere."""
    return torch.full((T, T), -torch.inf, dtype=torch.float64).triu(1)


def finish(weights: Weights, o: Tensor) -> Tensor:
    """[B, H, T, K] to [B, T, d]."""
    return join(o.transpose(1, 2), weights["W_o"])


def window_with_sink(weights: Weights, x: Tensor, w: int) -> Tensor:
    """`WindowAttention` without positions: the sink is one more token, with a value of 0."""
    q, k, v = heads(weights, x)
    far = torch.full(past(x.shape[1]).shape, -torch.inf, dtype=x.dtype).tril(-w)
    sink = weights["sink"][:, None, None].expand(-1, x.shape[1], 1)
    bias = torch.cat([sink, (past(x.shape[1]) + far).expand(q.shape[1], -1, -1)], -1)
    k, v = (pad(value, (0, 0, 1, 0)) for value in (k, v))
    return finish(weights, scaled_dot_product_attention(q, k, v, bias))


def alibi(weights: Weights, x: Tensor) -> Tensor:
    """`ALiBi` for a number of heads that is a power of two: rates 2^(-8/H), 2^(-16/H), ..."""
    q, k, v = heads(weights, x)
    H, T = q.shape[1:3]
    first = torch.tensor(2.0, dtype=x.dtype) ** (-8 / H)
    rates = torch.cumprod(first.expand(H), 0)
    at = torch.arange(T, dtype=x.dtype)
    bias = past(T) - rates[:, None, None] * (at[:, None] - at)
    return finish(weights, scaled_dot_product_attention(q, k, v, bias))


def capped(weights: Weights, x: Tensor, cap: float) -> Tensor:
    """`CappedAttention` without positions: all of the score is in the bias."""
    q, k, v = heads(weights, x)
    score = cap * torch.tanh(q @ k.mT / q.shape[-1] ** 0.5 / cap) + past(x.shape[1])
    zero = torch.zeros_like(q)
    return finish(weights, scaled_dot_product_attention(zero, zero, v, score))
