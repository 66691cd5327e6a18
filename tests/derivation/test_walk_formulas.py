"""The reverse walk that a page prints, done by hand, against autograd through the loop."""

from __future__ import annotations

import torch
from torch import Tensor

C, K, V = 6, 4, 3


def step_by_step(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor):
    reads = []
    for i in range(C):
        state = g[i].exp()[:, None] * state
        state = state + beta[i] * torch.outer(k[i], v[i] - state.T @ k[i])
        reads.append(state.T @ q[i])
    return torch.stack(reads), state


def by_the_page(values: tuple[Tensor, ...], d_r: Tensor, d_end: Tensor) -> dict[str, Tensor]:
    """The formulas of the KDA page: x = k, w = -beta k, c = beta v, one chunk."""
    q, k, v, g, beta, start = values
    x, w, c = k, -beta[:, None] * k, beta[:, None] * v
    gamma = g.cumsum(0).exp()
    ratio = torch.stack([gamma[i] / gamma for i in range(C)])  # [i, j, K]
    lower = torch.ones(C, C).tril(-1)
    A = torch.einsum("ik,ijk,jk->ij", w, ratio, x) * lower
    X = torch.linalg.inv(torch.eye(C) - A)
    W, U = X @ (gamma * w), X @ c
    y = U + W @ start
    reading = torch.einsum("lk,lik,ik->il", q, ratio, x) * torch.ones(C, C).triu()
    to_end = ratio[-1]  # Gamma_C / Gamma_i
    d_y = reading @ d_r + (to_end * x) @ d_end
    d_start = gamma[-1][:, None] * d_end + (gamma * q).T @ d_r + W.T @ d_y
    d_R = X.T @ d_y
    d_A = d_R @ y.T * lower
    pair = d_r @ y.T * torch.ones(C, C).tril()
    d_q = gamma * (d_r @ start.T) + torch.einsum("ij,ijk,jk->ik", pair, ratio, x)
    d_w = gamma * (d_R @ start.T) + torch.einsum("ij,ijk,jk->ik", d_A, ratio, x)
    d_x = torch.einsum("ij,ijk,ik->jk", pair, ratio, q)
    d_x = d_x + torch.einsum("ij,ijk,ik->jk", d_A, ratio, w) + to_end * (y @ d_end.T)
    d_k = d_x - beta[:, None] * d_w
    d_beta = (d_R * v).sum(1) - (d_w * k).sum(1)
    return {"q": d_q, "k": d_k, "v": beta[:, None] * d_R, "beta": d_beta, "start": d_start}


def test_the_printed_walk_is_the_gradient():
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    try:
        q, k, v = torch.randn(C, K), torch.randn(C, K), torch.randn(C, V)
        values = (q, k, v, -torch.rand(C, K), torch.rand(C), torch.randn(K, V))
        d_r, d_end = torch.randn(C, V), torch.randn(K, V)
        leaves = tuple(x.clone().requires_grad_() for x in values)
        reads, end = step_by_step(*leaves)
        wanted = torch.autograd.grad((reads * d_r).sum() + (end * d_end).sum(), leaves)
        found = by_the_page(values, d_r, d_end)
        names = ("q", "k", "v", "g", "beta", "start")
        for name, gradient in zip(names, wanted, strict=True):
            if name in found:
                torch.testing.assert_close(found[name], gradient, rtol=1e-10, atol=1e-10)
    finally:
        torch.set_default_dtype(torch.float32)
