"""Sizes at the edge: nothing to attend, choices of more than there is, blocks longer than the
sequence, no tokens and one token."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import archc
from tests.specs.cases import SMALL, inputs
from tests.specs.references import scores
from tests.specs.references.weights import randomise

ATTEND = """
layer L(d, H, K = d / H, w = 3):
    input x[d]
    param W_q, W_k, W_v[d, H, K]; W_o[H, K, d]
    q = x @ W_q
    k = x @ W_k
    v = x @ W_v
    attend RANGE over H:
        o = softmax(q[t].T @ k[s]) @ v[s]
    output y[d] = o @ W_o
"""
SINK = ATTEND.replace("W_o[H, K, d]", "W_o[H, K, d]; sink[H] = 0").replace("k[s])", "k[s], sink)")
BLOCKS = """
layer L(d, size = 4):
    input x[d]
    blocks b of size every size:
        c = mean[size](x[b])
    attend b ending <= t:
        o = softmax(x[t].T @ c[b]) @ c[b]
    output o
"""


def layer_and_input(spec: archc.Spec, T: int, **sizes: Any) -> tuple[nn.Module, Tensor]:
    layer = randomise(spec.module(**sizes, dtype=torch.float64), seed=0)
    x = torch.randn(2, T, 12, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return layer, x


@pytest.mark.parametrize("text", [ATTEND, SINK])
def test_a_window_of_no_tokens_reads_nothing(text: str) -> None:
    layer, x = layer_and_input(
        archc.parse(text.replace("RANGE", "t - w < s <= t")), T=5, d=12, H=2, w=0
    )
    assert torch.equal(layer(x), torch.zeros_like(x))


@pytest.mark.parametrize("text", [ATTEND, SINK])
def test_a_token_with_nothing_to_read_gives_zero(text: str) -> None:
    """And its gradient is a number."""
    layer, x = layer_and_input(archc.parse(text.replace("RANGE", "s < t")), T=5, d=12, H=2)
    x.requires_grad_()
    y = layer(x)
    y.square().sum().backward()
    assert torch.equal(y[:, 0], torch.zeros_like(y[:, 0]))
    assert y[:, 1:].abs().min() > 0
    gradients = [x.grad, *(p.grad for p in layer.parameters())]
    assert all(grad is not None and grad.isfinite().all() for grad in gradients)


def test_tokens_before_the_first_block_read_nothing() -> None:
    """A block of 4 is complete at the fourth token."""
    layer, x = layer_and_input(archc.parse(BLOCKS), T=9, d=12)
    x.requires_grad_()
    y = layer(x)
    y.square().sum().backward()
    assert torch.equal(y[:, :3], torch.zeros_like(y[:, :3]))
    assert y[:, 3:].abs().min() > 0
    assert x.grad is not None and x.grad.isfinite().all()


@pytest.mark.parametrize("T", [1, 2, 3])
def test_blocks_longer_than_the_sequence(T: int) -> None:
    """No block is complete, the chosen block holds all tokens and so does the window: what is left
    is plain attention, times two gates."""
    sizes = SMALL["nsa"] | {"size": 8, "stride": 4, "pick": 8, "w": 8}
    layer, x = layer_and_input(archc.load("nsa"), T=T, **sizes)
    weights = layer.state_dict()
    q, k, v = scores.heads(weights, x)
    o = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    gates = torch.einsum("btd,dhc->bhtc", x, weights["W_gate"]).sigmoid()
    theirs = scores.finish(weights, (gates[..., 1] + gates[..., 2])[..., None] * o)
    torch.testing.assert_close(layer(x), theirs)


def test_more_experts_than_there_are() -> None:
    layer, x = layer_and_input(archc.load("moe"), T=5, **SMALL["moe"] | {"n": 5})
    more, _ = layer_and_input(archc.load("moe"), T=5, **SMALL["moe"] | {"n": 50})
    assert torch.equal(more(x), layer(x))


def test_more_blocks_than_there_are() -> None:
    layer, x = layer_and_input(archc.load("nsa"), T=11, **SMALL["nsa"] | {"n": 3})
    more, _ = layer_and_input(archc.load("nsa"), T=11, **SMALL["nsa"] | {"n": 50})
    assert torch.equal(more(x), layer(x))


@pytest.mark.parametrize("name", SMALL)
def test_one_token(name: str) -> None:
    """One token gives what the first of several does, where nothing looks ahead."""
    spec = archc.load(name, **SMALL[name])
    layer = randomise(spec.module(dtype=torch.float64), seed=0)
    whole = inputs(spec.layer, SMALL[name], B=2, T=4, seed=1)
    one = {key: value if key == "c" else value[:, :1] for key, value in whole.items()}
    y, longer = (
        out if isinstance(out, Tensor) else out[0] for out in (layer(**one), layer(**whole))
    )
    assert y.isfinite().all()
    if name != "linear_attention_full":
        torch.testing.assert_close(y, longer[:, :1])
