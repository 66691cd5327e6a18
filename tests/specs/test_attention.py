"""Softmax attention specs against torch's SDPA and transformers' llama, gpt2, deepseek_v3, lfm2."""

from __future__ import annotations

import pytest
import torch

import archc
from tests.specs.agreement import agree
from tests.specs.references import deepseek, gpt2, lfm2, llama, softmax
from tests.specs.references.weights import randomise

SIZES = {"vocab": 50, "d": 32, "H": 4, "G": 2, "K": 8, "f": 40, "L": 2, "base": 500.0, "eps": 1e-5}


def tokens(B: int, T: int) -> torch.Tensor:
    return torch.randint(0, SIZES["vocab"], (B, T), generator=torch.Generator().manual_seed(1))


def values(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)


@pytest.mark.parametrize("G", [4, 2, 1])
def test_attention_with_groups(G: int) -> None:
    spec = archc.load("attention", base=None)
    layer = spec.module(d=32, H=4, G=G, dtype=torch.float64)
    randomise(layer, seed=G)
    x = values(2, 11, 32)
    theirs = softmax.attention(layer.state_dict(), x)
    agree("attention", f"torch SDPA, {4 // G} heads a group", layer(x), theirs)


def test_cross_attention() -> None:
    layer = archc.load("cross_attention").module(d=32, e=20, H=4, dtype=torch.float64)
    randomise(layer, seed=0)
    x, c = values(2, 7, 32), values(2, 13, 20)
    theirs = softmax.cross_attention(layer.state_dict(), x, c)
    agree("cross_attention", "torch SDPA", layer(x, c), theirs)


def test_transformer_block() -> None:
    model = llama.language_model(**SIZES, seed=3)
    sizes = {name: SIZES[name] for name in ("d", "H", "G", "K", "f", "base", "eps")}
    block = archc.load("transformer").module(**sizes, dtype=torch.float64)
    block.load_state_dict(llama.block_weights(model.model.layers[0], H=4, G=2, K=8))
    x = values(2, 11, 32)
    agree("transformer", "transformers llama, one block", block(x), llama.block(model, 0, x))


def test_language_model() -> None:
    model = llama.language_model(**SIZES, seed=4)
    lm = archc.load("lm").module(**SIZES, dtype=torch.float64)
    lm.load_state_dict(llama.model_weights(model, H=4, G=2, K=8))
    ids = tokens(2, 17)
    agree("lm", "transformers llama", lm(ids), llama.logits(model, ids))


@pytest.mark.parametrize("Q", [12, 0])
def test_latent_attention(Q: int) -> None:
    sizes = {"d": 32, "H": 4, "K": 8, "R": 6, "V": 10, "C": 16, "Q": Q, "base": 1000.0}
    reference = deepseek.attention(**sizes, seed=Q)
    layer = archc.load("mla").module(**sizes, dtype=torch.float64)
    layer.load_state_dict(deepseek.weights(reference))
    x = values(2, 11, 32)
    how = "with" if Q else "without"
    against = f"transformers deepseek_v3, {how} query compression"
    agree("mla", against, layer(x), deepseek.output(reference, x))


def test_lfm2() -> None:
    sizes = {"vocab": 50, "d": 32, "H": 4, "G": 2, "f": 40, "L": 3, "attention": [1], "width": 3}
    reference = lfm2.language_model(**sizes, seed=5)
    model = archc.load("lfm2").module(**sizes, dtype=torch.float64)
    model.load_state_dict(lfm2.model_weights(reference, H=4, G=2))
    ids = tokens(2, 17)
    agree("lfm2", "transformers lfm2", model(ids), lfm2.logits(reference, ids))


def test_gpt() -> None:
    sizes = {"vocab": 50, "d": 32, "H": 4, "L": 2, "length": 24}
    reference = gpt2.language_model(**sizes, seed=7)
    model = archc.load("gpt").module(**sizes, tanh=True, dtype=torch.float64).eval()
    model.load_state_dict(gpt2.model_weights(reference, H=4))
    ids = tokens(2, 17)
    targets = ids.roll(1, dims=1)
    logits, loss = model(ids, targets)
    their_logits, their_loss = gpt2.logits_and_loss(reference, ids, targets)
    agree("gpt", "transformers gpt2", logits, their_logits)
    agree("gpt", "transformers gpt2 and torch's cross_entropy, loss", loss, their_loss)
