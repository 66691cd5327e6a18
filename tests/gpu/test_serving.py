"""A pool on a GPU: its step is a CUDA graph, recorded again where there is more room."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import archc
from archc.serving import Pool, Together

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]

SIZES: dict[str, dict[str, Any]] = {
    "gpt": {"vocab": 64, "d": 64, "H": 4, "L": 2, "length": 128, "p": 0.1},
    "gemma3": {
        "vocab": 64, "d": 64, "H": 4, "G": 2, "K": 16, "L": 3, "f": 64, "full": [1], "window": 16,
    },
    "lfm2": {"vocab": 64, "d": 64, "H": 4, "G": 2, "L": 3, "f": 64, "attention": [1]},
    "kimi_linear": {
        "vocab": 64, "d": 64, "L": 3, "H": 2, "experts": 4, "active": 2, "f": 32, "dense": 64,
        "full": [1],
    },
    "mamba2_lm": {"vocab": 64, "d": 64, "L": 2, "P": 16, "N": 16, "G": 2},
    "xlstm": {"vocab": 64, "d": 64, "H": 2, "L": 2, "f": 64},
}  # fmt: skip

CHOOSING = """
import NSA from "nsa.arch"

layer Singly(d, H, K, n):
    input x[d]
    param W_q[d, H, K]; W_k[d, K]; W_v[d, K]; W_o[H, K, d]
    q = x @ W_q
    k = x @ W_k
    v = x @ W_v
    index s <= t:
        I = sum[H](relu(q[t] @ k[s]))
    chosen = top(n, I)
    attend s <= t in chosen over H:
        o = softmax(q[t].T @ k[s] / sqrt(K)) @ v[s]
    output y[d] = o @ W_o

model Choosing(vocab, d):
    input tokens in vocab
    param E[vocab, d]; W[d, vocab]
    x = E[tokens]
    y = x + NSA(d, 8, 2, 16, 16, 8, 4, 8, 4, 16)(x)
    output logits[vocab] = (y + Singly(d, 4, 16, 24)(y)) @ W
"""
"""Blocks are chosen, then tokens one by one."""
SIZES["choosing"] = {"vocab": 64, "d": 64}

STEADY = ("mamba2_lm", "xlstm")
"""Models that keep nothing of every token."""


@pytest.mark.parametrize("pages", [None, 4])
@pytest.mark.parametrize("spec", SIZES)
def test_sequences_are_as_if_alone(spec: str, pages: int | None) -> None:
    if pages is not None and spec in STEADY:
        pytest.skip("nothing is in pages")
    torch.manual_seed(0)
    known = archc.parse(CHOOSING) if spec == "choosing" else archc.load(spec)
    model = known.module(device="cuda", **SIZES[spec]).eval()
    prompts = [torch.randint(0, 64, (n,), device="cuda") for n in (3, 40, 17, 5)]
    pool, numbers = Pool(model, slots=3, pages=pages), dict[int, int]()
    waiting = [*enumerate(prompts)]
    assert isinstance(pool.lanes, Together) and pool.lanes.graph is not None
    while waiting or pool.live:
        while waiting and len(pool.live) < (3 if pages is None else 2):
            at, prompt = waiting.pop(0)
            numbers[at] = pool.add(prompt, 60, temperature=0)
        pool.step()
    for at, prompt in enumerate(prompts):
        wanted = archc.generate(model, prompt[None], 60, temperature=0)[0]
        assert torch.equal(pool.remove(numbers[at]), wanted), at
