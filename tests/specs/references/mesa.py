"""The Mesa layer: an exact solve for each token, and fla's naive conjugate gradients."""

from __future__ import annotations

from collections.abc import Callable

import torch
from fla.ops.mesa_net.naive import naive_mesa_net_CG
from torch import Tensor
from torch.nn.functional import silu, softplus

from tests.specs.references.layers import Weights, join, project, rms_norm, short_conv, unit


def parts(weights: Weights, x: Tensor) -> tuple[Tensor, ...]:
    """q, k, v [B, T, H, K], the gates beta and gamma [B, T, H], and the regulariser [H, K]."""
    q, k, v = (silu(short_conv(project(x, weights[f"W_{n}"]), weights[f"c_{n}"])) for n in "qkv")
    beta, gamma = (torch.sigmoid(project(x, weights[f"W_{n}"]) + weights[f"b_{n}"]) for n in "bg")
    return unit(q), unit(k), v, beta, gamma, softplus(weights["lam"])


def finish(weights: Weights, o: Tensor, eps: float) -> Tensor:
    """What follows the memory: [B, T, H, K] to [B, T, d]."""
    return rms_norm(join(o, weights["W_o"]), 1, eps) * weights["gain"]


Solve = Callable[[Tensor, Tensor], Tensor]


def exact(weights: Weights, x: Tensor, eps: float) -> Tensor:
    """The layer for [B, T, d], token by token, with torch.linalg.solve for each head."""
    return token_by_token(weights, x, eps, torch.linalg.solve)


def iterated(weights: Weights, x: Tensor, eps: float, steps: int) -> Tensor:
    """The same with conjugate gradients from 0 instead of a solution."""

    def solve(A: Tensor, b: Tensor) -> Tensor:
        z, rest = torch.zeros_like(b), b
        way = rest
        for _ in range(steps):
            if not rest.any():
                break
            length = rest @ rest / (way @ A @ way)
            z, left = z + length * way, rest - length * (A @ way)
            way, rest = left + left @ left / (rest @ rest) * way, left
        return z

    return token_by_token(weights, x, eps, solve)


def token_by_token(weights: Weights, x: Tensor, eps: float, solve: Solve) -> Tensor:
    """The layer with z = solve(A, b) for A z = b of one token and head."""
    q, k, v, beta, gamma, lam = parts(weights, x)
    o = torch.zeros_like(v)
    for b, h in torch.cartesian_prod(*map(torch.arange, (v.shape[0], v.shape[2]))).tolist():
        A = G = v.new_zeros(v.shape[-1], v.shape[-1])
        for t in range(v.shape[1]):
            forget, write = gamma[b, t, h], beta[b, t, h]
            A = forget * A + write * torch.outer(k[b, t, h], k[b, t, h])
            G = forget * G + write * torch.outer(k[b, t, h], v[b, t, h])
            o[b, t, h] = G.T @ solve(A + torch.diag(lam[h]), q[b, t, h])
    return finish(weights, o, eps)


def by_fla(weights: Weights, x: Tensor, eps: float, steps: int) -> Tensor:
    """The layer with fla's conjugate gradients, in float32; T must be a multiple of 8."""
    q, k, v, beta, gamma, lam = parts(weights, x)
    values = (value.float() for value in (q, k, v, gamma.log(), lam, beta))
    o, _, _ = naive_mesa_net_CG(*values, 8, steps)
    return finish(weights, o.to(x), eps)
