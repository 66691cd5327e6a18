"""Softmax attention with windows, sinks, distances and caps."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import archc
from tests.specs.agreement import agree
from tests.specs.references import scores
from tests.specs.references.weights import randomise


def made(spec: str, **sizes: Any) -> tuple[nn.Module, Tensor]:
    layer = archc.load(spec, **sizes).module(d=16, dtype=torch.float64)
    x = torch.randn(2, 19, 16, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return randomise(layer, seed=0), 2 * x


@pytest.mark.parametrize(("w", "G"), [(1, 4), (5, 2), (19, 1), (1000, 2)])
def test_window_and_sink(w: int, G: int) -> None:
    layer, x = made("window_attention", H=4, G=G, w=w, base=None)
    theirs = scores.window_with_sink(layer.state_dict(), x, w)
    agree("window_attention", f"torch SDPA with biases, window {w}", layer(x), theirs)


@pytest.mark.parametrize("H", [1, 4, 8])
def test_distance(H: int) -> None:
    layer, x = made("alibi", H=H)
    theirs = scores.alibi(layer.state_dict(), x)
    agree("alibi", f"torch SDPA with biases, {H} heads", layer(x), theirs)


@pytest.mark.parametrize("cap", [0.5, 50.0])
def test_cap(cap: float) -> None:
    layer, x = made("capped_attention", H=4, G=2, cap=cap, base=None)
    theirs = scores.capped(layer.state_dict(), x, cap)
    agree("capped_attention", f"torch SDPA with biases, cap {cap:g}", layer(x), theirs)
