"""Softmax attention of tokens that go on after others, against all weights laid out."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from archc.runtime.layers import softmax_attention
from archc.runtime.onward import attention_onward


def laid_out(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """The same with a weight for every two tokens; [B, H, T, K]."""
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    hidden = torch.ones(q.shape[2], k.shape[2]).tril(k.shape[2] - q.shape[2]) == 0
    weights = (scale * q @ k.mT).masked_fill(hidden, -math.inf).softmax(-1)
    return weights @ v


@pytest.mark.parametrize(("T", "S"), [(2, 3), (5, 9), (5, 6), (3, 70)])
@pytest.mark.parametrize("G", [4, 2, 1])
@pytest.mark.parametrize("size", [1.0, 30.0])
def test_values_and_gradients(T: int, S: int, G: int, size: float) -> None:
    """Both calls are one softmax, whichever of them has the larger weights."""
    torch.manual_seed(0)
    shapes = ((2, 4, T, 6), (2, G, S, 6), (2, G, S, 6))
    q, k, v = (torch.randn(*s, dtype=torch.float64, requires_grad=True) for s in shapes)
    pairs = []
    for run in (attention_onward, laid_out):
        o = run(q, size * k, v, 0.3)
        assert o is not None
        pairs.append([o, *torch.autograd.grad((o * torch.cos(o.detach())).sum(), [q, k, v])])
    for found, wanted in zip(*pairs, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-11, atol=1e-11)


def test_nothing_of_all_pairs_is_made() -> None:
    """2,048 tokens after as many: no tensor has a number for every two of them."""
    q, k = torch.randn(1, 2048, 1, 8), torch.randn(1, 4096, 1, 8)
    seen: list[int] = []

    class Sizes(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            made = func(*args, **(kwargs or {}))
            found = made if isinstance(made, tuple) else (made,)
            seen.extend(x.numel() for x in found if isinstance(x, Tensor))
            return made

    with Sizes():
        softmax_attention(q, k, k, causal=True)
    assert seen and max(seen) < 2048 * 4096


def test_autocast_and_what_has_no_such_kernels() -> None:
    q, k = torch.randn(1, 2, 3, 8), torch.randn(1, 2, 9, 8)
    with torch.autocast("cpu"):
        o = attention_onward(q, k, k, 1.0)
        assert o is not None and o.dtype == torch.bfloat16
    torch.testing.assert_close(o.float(), laid_out(q, k, k, 1.0), rtol=2e-2, atol=2e-2)
    nowhere = k.to("meta")
    assert attention_onward(q.to("meta"), nowhere, nowhere, 1.0) is None
