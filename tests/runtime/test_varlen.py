"""Softmax attention of packed sequences."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from archc.runtime import varlen
from archc.runtime.layers import softmax_attention
from archc.runtime.varlen import one_launch_pays, packed_attention

BORDERS = [0, 3, 3, 4, 9, 12]


def given(dtype: torch.dtype, device: str = "cpu", heads: int = 4, groups: int = 2, K: int = 6):
    """Queries, keys and values of packed sequences, and their borders."""
    draw = torch.Generator().manual_seed(0)
    sizes = ((heads, K), (groups, K), (groups, 5))
    xs = [torch.randn(1, BORDERS[-1], *size, generator=draw).to(device, dtype) for size in sizes]
    return [x.requires_grad_() for x in xs], torch.tensor(BORDERS, device=device)


def alone(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
    """Each sequence by itself, in float64."""
    xs = [x.double() for x in (q, k, v)]
    parts = [[x[:, i:j] for x in xs] for i, j in pairwise(BORDERS)]
    return torch.cat([softmax_attention(*part, causal=causal) for part in parts], 1)


def close(causal: bool, dtype: torch.dtype, device: str, most: float, **sizes: int) -> None:
    """Values and gradients are those of each sequence alone."""
    xs, borders = given(dtype, device, **sizes)
    o, wanted = packed_attention(*xs, borders, causal), alone(*xs, causal)
    assert o.shape == wanted.shape and o.dtype == dtype
    slope = torch.randn_like(wanted)
    theirs = torch.autograd.grad(wanted, xs, slope)
    ours = torch.autograd.grad(o, xs, slope.to(dtype))
    for a, b in zip((o, *ours), (wanted, *theirs), strict=True):
        assert (a.double() - b.double()).norm() <= most * b.double().norm()


@pytest.mark.parametrize("causal", [False, True])
def test_each_sequence_is_as_if_alone(causal: bool) -> None:
    close(causal, torch.float64, "cpu", 1e-12)


@pytest.mark.parametrize("causal", [False, True])
def test_one_launch_is_given_what_it_wants(causal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """[T, H, D] of one length, a multiple of 8; int32; as many heads of keys as of values."""
    seen: list[dict[str, Any]] = []

    def kernel(q: Tensor, k: Tensor, v: Tensor, *borders: Any, **options: Any) -> Tensor:
        assert q.shape == (12, 4, 8) and k.shape == v.shape == (12, 2, 8)
        assert borders[0].dtype == torch.int32 and borders[2:] == (5, 5)
        seen.append(options)
        return alone(q[None], k[None], v[None], options["window_size"] == (-1, 0))[0].to(q.dtype)

    monkeypatch.setattr(varlen, "varlen_kernel", lambda device: kernel)
    close(causal, torch.bfloat16, "cpu", 0.02)
    assert seen == [{"scale": 1.0, "window_size": (-1, 0) if causal else (-1, -1)}]


def test_few_long_sequences_are_several_launches() -> None:
    """What was measured: of 16,384 tokens, 32 heads of 128, it pays from about 16 sequences on."""
    assert not one_launch_pays([4000, 4100, 4200, 4084], 32 * 128, causal=True)
    assert one_launch_pays([500 + i for i in range(30)], 32 * 128, causal=True)
    assert not one_launch_pays([4096] * 4, 32 * 128, causal=True)  # a batch of equal length


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
@pytest.mark.parametrize("sizes", [{}, {"groups": 4, "K": 64}, {"groups": 1}])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_on_a_gpu(dtype: torch.dtype, causal: bool, sizes: dict[str, int]) -> None:
    """By torch's own kernel, where there is one in the dtype."""
    close(causal, dtype, "cuda", 1e-5 if dtype == torch.float32 else 0.02, **sizes)
