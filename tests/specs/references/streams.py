"""Residual streams mixed by doubly stochastic matrices: the package hyper-connections, which
computes in float32 and keeps streams in the batch, and the paper's equations token by token."""

from __future__ import annotations

from collections.abc import Callable

import torch
from hyper_connections import mc_get_expand_reduce_stream_functions, mHC
from torch import Tensor, nn

from tests.specs.references.layers import Weights

Layer = Callable[[Tensor], Tensor]


def connection(n: int, d: int, branch: Layer, seed: int) -> mHC:
    """One of the package's connections around a layer, its maps the same for all tokens."""
    made = mHC(n, dim=d, branch=branch, layer_index=0)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        made.static_alpha.normal_(generator=generator)
        made.static_beta.normal_(generator=generator)
    return made


def depend_on_input(made: mHC, seed: int) -> mHC:
    """The same, with maps that depend on the token."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in (made.dynamic_alpha_fn, made.dynamic_beta_fn, made.norm.gamma):
            parameter.normal_(generator=generator)
        for scale in (made.pre_branch_scale, made.residual_scale, made.h_post_scale):
            scale.fill_(0.4)
    return made


def output(made: mHC, X: Tensor) -> Tensor:
    """[B, T, n, d] to [B, T, n, d]."""
    B, _, n, _ = X.shape
    with torch.no_grad():
        Y = made(X.permute(0, 2, 1, 3).flatten(0, 1))
    return Y.unflatten(0, (B, n)).permute(0, 2, 1, 3)


def static_weights(made: mHC) -> Weights:
    """Parameters of `HyperConnected`; the package mixes rows of streams, X' A, not A X."""
    pre, mix = made.static_alpha.detach().split([1, made.num_residual_streams], dim=1)
    post = 2 * torch.sigmoid(made.static_beta.detach())
    return {"a_pre": torch.sigmoid(pre[:, 0]), "a_post": post, "A": mix.T}


def dynamic_weights(made: mHC) -> Weights:
    """Parameters of the variant `streams_apart`."""
    n = made.num_residual_streams
    b_pre, b_mix = made.static_alpha.detach().split([1, n], dim=1)
    w_pre, W_mix = made.dynamic_alpha_fn.detach()[0].split([1, n], dim=1)
    return {
        "gain": made.norm.gamma.detach() + 1,
        "w_pre": w_pre[:, 0],
        "w_post": made.dynamic_beta_fn.detach(),
        "W_mix": W_mix,
        "b_pre": b_pre[:, 0],
        "b_post": made.static_beta.detach(),
        "b_mix": b_mix,
        "a_pre": made.pre_branch_scale.detach()[0],
        "a_post": made.h_post_scale.detach(),
        "a_mix": made.residual_scale.detach()[0],
    }


def stack(connections: list[mHC], x: Tensor) -> Tensor:
    """[B, T, d] expanded to streams, through the connections, and collapsed."""
    n = connections[0].num_residual_streams
    expand, collapse = mc_get_expand_reduce_stream_functions(n)
    with torch.no_grad():
        return collapse(nn.Sequential(*connections)(expand(x)))


def by_formula(weights: Weights, X: Tensor, inner: Layer, steps: int, eps: float) -> Tensor:
    """`MixedStreams` for [B, T, n, d], one token at a time."""
    n, Y, reads = X.shape[2], torch.zeros_like(X), X.new_zeros(*X.shape[:2], X.shape[3])
    maps = {}
    for b, t in torch.cartesian_prod(*map(torch.arange, X.shape[:2])).tolist():
        flat = X[b, t].flatten()
        z = flat / (flat.square().mean() + eps).sqrt()
        pre, post = (z @ weights[f"W_{m}"].reshape(z.numel(), n) for m in ("pre", "post"))
        mix = (z @ weights["W_mix"].reshape(z.numel(), n * n)).reshape(n, n)
        mix = (weights["a_mix"] * mix + weights["b_mix"]).exp()
        for _ in range(steps):
            mix = mix / mix.sum(1, keepdim=True)
            mix = mix / mix.sum(0, keepdim=True)
        reads[b, t] = torch.sigmoid(weights["a_pre"] * pre + weights["b_pre"]) @ X[b, t]
        maps[b, t] = mix, 2 * torch.sigmoid(weights["a_post"] * post + weights["b_post"])
    y = inner(reads)
    for (b, t), (mix, post) in maps.items():
        Y[b, t] = mix @ X[b, t] + post[:, None] * y[b, t]
    return Y
