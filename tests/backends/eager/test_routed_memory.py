"""Memories that each token moves some of, as packed sequences of the tokens that chose them."""

from __future__ import annotations

import sys
from functools import cache
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

import archc
from archc.compile import with_chunked_forms
from archc.ir.routes import listing
from archc.runtime.routed import memories_pay
from tests.specs.references import memories
from tests.specs.references.weights import randomise

SIZES: dict[str, Any] = {"d": 6, "H": 2, "N": 3, "n": 2, "K": 4, "V": 3, "eps": 1e-6}


@cache
def layer() -> nn.Module:
    return randomise(archc.load("mom").module(**SIZES, dtype=torch.float64), seed=0)


def ways(
    module: nn.Module, monkeypatch: pytest.MonkeyPatch, force: bool | None = None
) -> list[bool]:
    """What was decided, for each call; `force`: what is done instead."""
    made: list[bool] = []

    def told(*given: Any) -> bool:
        made.append(memories_pay(*given))
        return made[-1] if force is None else force

    monkeypatch.setattr(sys.modules[type(module).__module__], "memories_pay", told)
    return made


def drawn(*size: int) -> Tensor:
    return torch.randn(*size, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def results(x: Tensor) -> list[Tensor]:
    """Outputs, final memories, and gradients by what enters and by every parameter."""
    x = x.clone().requires_grad_()
    y, state = layer()(x, return_state=True)
    loss = (y * torch.linspace(-1, 1, y.shape[-1])).sum() + state.S_2.square().sum()
    return [y, state.S_2, *torch.autograd.grad(loss, [x, *layer().parameters()])]


def agree(found: list[Tensor], wanted: list[Tensor]) -> None:
    for one, other in zip(found, wanted, strict=True):
        assert (one - other).abs().max() < 1e-9 * other.abs().max()


def test_many_tokens_go_to_the_memories_they_chose(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the formulas say, token by token; gradients are those of memories that look at all."""
    decided, x = ways(layer(), monkeypatch), drawn(2, 100, 6)
    found = results(x)
    with torch.no_grad():
        y, states, _ = memories.mixture(layer().state_dict(), x[:1], 2, 1e-6, False)
    agree([found[0][:1], found[1][:1]], [y, states])
    layer()(x[:, :90])
    assert decided == [True, False]
    ways(layer(), monkeypatch, force=False)
    agree(found, results(x))


def test_no_sequences_give_no_outputs() -> None:
    assert layer()(drawn(0, 5, 6)).shape == (0, 5, 6)


def test_packed_sequences_each_have_their_own_memories(monkeypatch: pytest.MonkeyPatch) -> None:
    """From states that are given, of which one sequence has no tokens."""
    decided = ways(layer(), monkeypatch)
    x, borders = drawn(1, 310, 6), [0, 130, 130, 310]
    state = layer().initial_state(3)
    state = state.replace(S=drawn(3, 2, 4, 3), S_2=drawn(3, 3, 2, 4, 3))
    y, after = layer()(x, state=state, return_state=True, cu_seqlens=torch.tensor(borders))
    assert decided == [True]
    for row, (start, end) in enumerate(pairwise(borders)):
        parts, own = [], state.select([row])
        for at in range(start, end, 10):
            made, own = layer()(x[:, at : min(at + 10, end)], state=own, return_state=True)
            parts.append(made)
        agree([after.S_2[row : row + 1]], [own.S_2])
        if parts:
            agree([y[:, start:end]], [torch.cat(parts, 1)])
    assert not any(decided[1:])


def in_eights(module: nn.Module, x: Tensor) -> tuple[Tensor, Any]:
    """The output of eight tokens at a time, too few to be routed, and the state after them."""
    state, parts = module.initial_state(len(x)), []
    for each in x.split(8, 1):
        made, state = module(each, state=state, return_state=True)
        parts.append(made)
    return torch.cat(parts, 1), state


READ_LATER = """
layer M(K, V):
    input k[K], v[V], a
    recurrence S[K, V]:
        S[t] = a * S[t-1] + k @ v.T
        o    = S[t].T @ k
    output o

layer L(d, N, K, V):
    input x[d]
    param W_r[d, N]; W_k[N, d, K]; W_v[N, d, V]; W_o[N, V, d]; w[d]
    s = x @ W_r
    p = where(s > 0, s, {lowest})
    route e in top(2, p) weight p / 4:
        y = silu(M(x @ W_k[e], x @ W_v[e], sigmoid(x @ w))) @ W_o[e]
    output y
"""


@pytest.mark.parametrize("lowest", ["s / 2", "-inf"])
def test_a_product_with_matrices_reads_what_was_remembered(lowest: str) -> None:
    """Where a score is infinitely low a place is not chosen, and another one stands in for it: its
    memory stays as it is."""
    spec = archc.parse(READ_LATER.format(lowest=lowest))
    module = spec.module(d=3, N=3, K=2, V=2, dtype=torch.float64)
    x = drawn(1, 200, 3)
    made, state = in_eights(module, x)
    y, after = module(x, return_state=True)
    agree([y, after.S], [made, state.S])


UNLIKE = """
layer L(d, N, H, K):
    input x[d]
    param W_r[d, N]; W_k[d, N, H, K]; W_q[d, H, K]
    p = softmax[N](x @ W_r)
    q = x @ W_q
    k = x @ W_k
    chosen = top(1, p)
    recurrence S[N, K] over H:
        S[t] = {update}
        o    = {read}
    output y[H, K] = sum[N](where(chosen, p, 0) * o)
"""
MOVED = "where(chosen, 0.5 * S[t-1] + k, S[t-1])"


@pytest.mark.parametrize(
    ("update", "read", "alone"),
    [
        (MOVED, "S[t] * q", True),
        ("where(chosen, 0.5 * S[t-1] + k, 0.5 * S[t-1])", "S[t] * q", False),
        ("0.5 * S[t-1] + k", "S[t] * q", False),
        ("where(chosen, k + 0.1 * k * sum[N, K](S[t-1]), S[t-1])", "S[t] * q", False),
    ],
)
def test_a_memory_that_depends_on_other_tokens_sees_them_all(
    update: str, read: str, alone: bool
) -> None:
    """It fades where it is not chosen, or is written with those of other places."""
    spec = archc.parse(UNLIKE.format(update=update, read=read))
    told = [*listing(with_chunked_forms(spec.layer).graph)]
    assert any("packed sequence" in line for line in told) is alone
    module = spec.module(d=3, N=3, H=2, K=2, dtype=torch.float64)
    x = drawn(1, 200, 3)
    agree([module(x)], [in_eights(module, x)[0]])


def test_when_they_pay_on_a_gpu() -> None:
    """Faster on an H100, of 2 sequences and 2 of 4 memories: with gradients from 2,048 tokens
    on, without from 8,192."""
    for tokens, learns, pays in ((2048, True, True), (2048, False, False), (8192, False, True)):
        with FakeTensorMode(), torch.set_grad_enabled(learns):
            chosen = torch.empty(2, tokens, 4, dtype=torch.bool, device="cuda")
            assert memories_pay(chosen, 2, None) is pays
