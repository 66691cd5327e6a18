"""Mixture of memories: both kinds of memory, and what happens to those that are not chosen."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import archc
from tests.specs.agreement import agree
from tests.specs.references import memories
from tests.specs.references.weights import randomise

SIZES = {"d": 12, "H": 2, "N": 5, "K": 6, "V": 4, "eps": 1e-6, "dtype": torch.float64}


def layer_and_input(n: int, linear: bool = False) -> tuple[nn.Module, Tensor]:
    layer = archc.load("mom").module(**SIZES, n=n, linear=linear)
    x = torch.randn(3, 17, 12, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return randomise(layer, seed=0), x


@pytest.mark.default("1-True", "2-False")
@pytest.mark.parametrize("linear", [False, True])
@pytest.mark.parametrize("n", [1, 2, 5])
def test_token_by_token(n: int, linear: bool) -> None:
    layer, x = layer_and_input(n, linear)
    y, state = layer(x, return_state=True)
    theirs, final, _ = memories.mixture(layer.state_dict(), x, n, SIZES["eps"], linear)
    kind = "linear" if linear else "gated delta"
    agree("mom", f"a loop from the formulas, {kind}, {n} of 5 memories", y, theirs)
    agree("mom", f"a loop from the formulas, {kind}, {n} of 5, final memories", state.S_2, final)


def test_a_memory_that_is_not_chosen_keeps_every_bit() -> None:
    """Decay included: it does not see the token at all. One that is chosen moves."""
    layer, x = layer_and_input(n=2)
    _, _, chosen = memories.mixture(layer.state_dict(), x, 2, SIZES["eps"], linear=False)
    _, state = layer(x[:, :1], return_state=True)
    for t in range(1, x.shape[1]):
        before = state.S_2.clone()
        _, state = layer(x[:, t : t + 1], state=state, return_state=True)
        assert torch.equal(state.S_2[~chosen[:, t]], before[~chosen[:, t]])
        assert not torch.equal(state.S_2[chosen[:, t]], before[chosen[:, t]])


def test_more_than_all_memories() -> None:
    """The best 9 of 5 are all 5."""
    layer, x = layer_and_input(n=5)
    more = archc.load("mom").module(**SIZES, n=9)
    more.load_state_dict(layer.state_dict())
    assert torch.equal(more(x), layer(x))
