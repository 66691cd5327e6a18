"""What experts add to training: losses among outputs, and biases that choices alone read."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func

import archc
import archc.hf

MODEL = """
import BalancedMoE from "moe.arch"

model Small(vocab, d, f, N, n, L = 2):
    input tokens in vocab
    param E[vocab, d] = normal(0, 1); W[d, vocab]
    x = E[tokens]
    experts_loss = 0
    repeat L as l:
        param w[d, 3]
        y, balance, z, bias = BalancedMoE(d, f, N, n)(shortconv(x, w))
        x = x + y
        experts_loss = experts_loss + balance + z + bias
    output logits[vocab] = x @ W
    output experts_loss
"""
SIZES: dict[str, Any] = {"vocab": 11, "d": 8, "f": 4, "N": 5, "n": 2}


@cache
def model() -> nn.Module:
    torch.manual_seed(0)
    return archc.parse(MODEL).module(**SIZES, dtype=torch.float64)


def experts(model: nn.Module, layer: int) -> nn.Module:
    return model.get_submodule(f"layers.{layer}.balanced_moe")


def expected(tokens: Tensor, mask: Tensor | None) -> Tensor:
    """The added losses by the code of transformers, of logits that each router makes."""
    seen: list[Tensor] = []
    hooks = [
        experts(model(), at).register_forward_pre_hook(lambda _, x: seen.append(x[0]))
        for at in (0, 1)
    ]
    for row in range(len(tokens)):  # each sequence without what stands before it
        model()(tokens[row][None] if mask is None else tokens[row][mask[row] > 0][None])
    for hook in hooks:
        hook.remove()
    total = torch.zeros((), dtype=torch.float64)
    for at in (0, 1):
        logits = torch.cat([x[0] for x in seen[at::2]]) @ experts(model(), at).W_r
        share = load_balancing_loss_func((logits,), 5, 2)
        assert isinstance(share, Tensor)  # of all choices of a token
        total = total + 0.01 * share / 2 + 0.001 * logits.logsumexp(-1).square().mean()
    return total.detach()


@pytest.mark.parametrize("padded", [False, True])
def test_losses_are_those_of_transformers(padded: bool) -> None:
    """Of all tokens of a batch together; padding is none."""
    tokens = torch.randint(0, 11, (3, 7), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(tokens)
    mask[1, :3], mask[2, 5:] = int(not padded), int(not padded)
    made = model()(tokens, attention_mask=mask if padded else None)
    found = archc.auxiliary_loss(model(), made)
    torch.testing.assert_close(found, expected(tokens, mask if padded else None).float())
    plain = archc.load("gla").module(d=4, H=1)
    assert archc.auxiliary_loss(plain, plain(torch.zeros(1, 2, 4))) is None


def test_a_model_goes_on_without_its_losses() -> None:
    tokens = torch.randint(0, 11, (2, 9), generator=torch.Generator().manual_seed(2))
    whole, _ = model()(tokens)
    start, state = model()(tokens[:, :4], return_state=True)
    rest, _ = model()(tokens[:, 4:], state=state, return_state=True)
    torch.testing.assert_close(torch.cat([start[0], rest[0]], 1), whole)
    other = archc.parse(MODEL.replace("output logits[vocab] = x", "output logits[vocab] = "
                                      "experts_loss * x"))  # fmt: skip
    with pytest.raises(ValueError, match="is made from all tokens"):
        other.module(**SIZES)(tokens, return_state=True)


def test_biases_move_by_the_sign_of_what_experts_have_too_much() -> None:
    """As in algorithm 1 of arXiv 2408.15664, whatever the optimizer does."""
    torch.manual_seed(3)
    layer = archc.load("moe", "BalancedMoE").module(d=6, f=3, N=4, n=2)
    optimizer = torch.optim.AdamW(layer.parameters(), 0.1, weight_decay=0.5)
    hook = archc.balance(layer, optimizer, 0.02)
    bias, gains = torch.zeros(4), layer.W_d.detach().clone()
    for _ in range(5):
        optimizer.zero_grad()
        parts, load = torch.randn(3, 1, 5, 6), torch.zeros(4)
        for x in parts:  # gradients of a step come in parts
            y, *_ = made = layer(x)
            chosen = (torch.softmax(x @ layer.W_r, -1) + bias).topk(2).indices
            load += F.one_hot(chosen, 4).sum((0, 1, 2))
            (y.square().mean() + archc.auxiliary_loss(layer, made)).backward()
        optimizer.step()
        bias = bias + 0.02 * torch.sign(load.mean() - load)
        torch.testing.assert_close(layer.bias.detach(), bias)
    assert layer.bias.detach().abs().max() > 0.01 and not torch.equal(gains, layer.W_d)
    hook.remove()
    with pytest.raises(ValueError, match="above 0"):
        archc.balance(layer, optimizer, 0)


def test_the_loss_of_hugging_face_has_them() -> None:
    """Parts of a batch each have their share, as Trainer asks for."""
    torch.manual_seed(4)
    made = archc.hf.model(archc.parse(MODEL), **SIZES)
    tokens = torch.randint(0, 11, (4, 6))
    out = made(tokens, labels=tokens)
    logits = out.logits[:, :-1].flatten(0, 1)
    told = F.cross_entropy(logits, tokens[:, 1:].flatten())
    torch.testing.assert_close(out.loss, told + out.aux_loss)
    half = [made(part, labels=part, num_items_in_batch=20) for part in tokens.split(2)]
    torch.testing.assert_close(
        half[0].loss + half[1].loss, told + (half[0].aux_loss + half[1].aux_loss) / 2
    )
    assert made.generate(tokens[:, :3], max_new_tokens=2, do_sample=False).shape == (4, 5)
