"""State spaces: scipy.signal.dlsim for constant matrices, a loop for input-dependent ones."""

from __future__ import annotations

import torch
from scipy.signal import dlsim
from torch import Tensor
from torch.nn.functional import softplus


def ssm(weights: dict[str, Tensor], x: Tensor) -> Tensor:
    """`SSM`: [B, T, d] to [B, T, d].

    dlsim reads its state before the update, y = C' z + D' u with z the previous h, so C' = C A and
    D' = C B.
    """
    A, B, C = weights["A"].numpy(), weights["B"].numpy().T, weights["C"].numpy().T
    system = (A, B, C @ A, C @ B, 1)
    return torch.stack([torch.from_numpy(dlsim(system, u.numpy())[1]) for u in x])


def selective_ssm(weights: dict[str, Tensor], x: Tensor) -> Tensor:
    """`SelectiveSSM`, one channel of one token at a time as algorithm 2 of the paper has it."""
    D, N = weights["A_log"].shape
    u = x @ weights["W_u"]
    step = softplus(x @ weights["W_dt"] + weights["b_dt"])
    b, c = x @ weights["W_B"], x @ weights["W_C"]
    o = torch.zeros_like(u)
    for batch in range(x.shape[0]):
        for channel in range(D):
            h = u.new_zeros(N)
            for t in range(x.shape[1]):
                rate = -weights["A_log"][channel].exp()
                h = (step[batch, t, channel] * rate).exp() * h
                h = h + step[batch, t, channel] * u[batch, t, channel] * b[batch, t]
                o[batch, t, channel] = h.dot(c[batch, t])
    return (o + weights["skip"] * u) @ weights["W_o"]
