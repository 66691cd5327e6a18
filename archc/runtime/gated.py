"""What stands between two levels of a tree of spans with gates by channel: vectors, a product of
gates for each channel of a span, in place of matrices."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def join_gates(P: Tensor, joined: Tensor, tokens: int, size: int) -> None:
    """The products [B, h, spans, K] of spans of twice the length."""
    count = P.shape[2] // 2
    torch.mul(P[:, :, 0 : 2 * count : 2], P[:, :, 1 : 2 * count : 2], out=joined[:, :, :count])
    joined[:, :, count:] = P[:, :, 2 * count :]


def back_of_gates(of_tokens: Callable, sums: Callable, parts: int) -> Callable:
    """The gradient at the borders of spans by two kernels: of `parts` of each span, and of sums
    over all of its tokens."""

    def run(*given: Tensor) -> None:
        *rows, d_P, d_left, d_q, d_k, d_gate, tokens = given
        at_end = d_P.new_empty((*d_P.shape[:3], parts, d_P.shape[3]))
        of_tokens(*rows, d_left, at_end, d_q, d_k, d_gate, tokens)
        sums(d_P, at_end, d_gate, tokens)

    return run
