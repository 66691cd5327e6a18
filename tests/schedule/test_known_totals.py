"""Choices by the weights of a softmax are told its total by what sums with them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from archc.backends.load import load

import archc
from archc.compile import elaborated, lowered, placed, text_of
from archc.ir import layer as ir
from archc.source import Source
from tests.schedule.same import check_same
from tests.schedule.test_choosing import choosing, moved

LAYER = """
layer Chosen(d, H, K, size = 2, n = 2):
    input x[d]
    param W_q, W_k[d, H, K]
    q = x @ W_q
    k = x @ W_k
    blocks b of size every size:
        k_c = mean[size](k[b])
    attend {read} over H:
        p = softmax({score})
        o = p @ {values}
    chosen = {choice}
    attend s <= t in chosen over H:
        u = softmax(q[t].T @ k[s]) @ k[s]
    output y[H, K] = o + u
"""
BLOCKS = {
    "read": "b ending <= t", "score": "q[t].T @ k_c[b]", "values": "k_c[b]",
    "choice": "top(n, p on blocks of size)",
}  # fmt: skip


def written(**other: str) -> ir.Layer:
    """A layer that chooses by the weights that it sums with."""
    return elaborated(Source("chosen.arch", LAYER.format(**(BLOCKS | other))))


def made(**other: str) -> ir.Layer:
    """The same, ready for kernels."""
    return lowered(written(**other))


def softmaxes(layer: ir.Layer) -> list[ir.Softmax]:
    """Those that choices are made by."""
    return [n.op for op in choosing(layer) for n in op.body if isinstance(n.op, ir.Softmax)]


@pytest.mark.parametrize("layer", [lowered(archc.load("nsa").layer), made()], ids=["nsa", "blocks"])
def test_a_softmax_is_made_once(layer: ir.Layer):
    after = placed(layer)
    assert len(softmaxes(moved(layer))) == 1 and not softmaxes(after)
    (choice,) = choosing(after)
    assert ("log_total", "reader") in choice.captures
    check_same(layer, after)


def test_what_torch_makes_tells_none():
    layer = made(read="s <= t", score="q[t].T @ k[s]", values="k[s]", choice="top(n, p)")
    assert len(softmaxes(placed(layer))) == 1


def test_totals_in_float32_meet_values_in_bfloat16():
    """The file for kernels where there is no GPU: a prompt, then a token."""
    file: Any = load(text_of(written(), "triton"), "chosen")
    module = file.Chosen(d=8, H=2, K=4).bfloat16()
    x = torch.randn(1, 9, 8, dtype=torch.bfloat16)
    y, state = module(x[:, :8], return_state=True)
    y = torch.cat([y, module(x[:, 8:], state=state)], 1)
    assert y.dtype == torch.bfloat16 and y.isfinite().all()
