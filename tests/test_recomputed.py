"""Modules that keep less: the same numbers, fewer bytes, and copies that do so too."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

import archc

DROPPED = """
layer Dropped(d, H, K):
    input x[d]
    param W[d, H, K]; W_o[H, K, d]
    h = dropout(silu(x @ W), 0.5)
    output y[d] = h @ W_o
"""
GPT = {"vocab": 11, "d": 8, "H": 2, "L": 3}


def pair(name: str, **sizes: int) -> tuple[nn.Module, nn.Module]:
    """A module as it is, and one that keeps less, with the same parameters."""
    torch.manual_seed(0)
    spec = archc.load(name)
    plain, less = spec.module(**sizes), spec.module(**sizes, recompute=True)
    less.load_state_dict(plain.state_dict())
    return plain, less


def learned(module: nn.Module, *given: Tensor, **named: Tensor) -> tuple[list[Tensor], int]:
    """Outputs and gradients of all parameters, and how many bytes the forward kept for them."""
    kept: dict[int, int] = {}

    def keep(x: Tensor) -> Tensor:
        kept[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
        return x

    torch.manual_seed(1)  # what is dropped
    with saved_tensors_hooks(keep, lambda x: x):
        out = module(*given, **named)
    found = torch.autograd.grad(out.square().sum(), [*module.parameters()])
    return [out, *found], sum(kept.values())


def same(one: list[Tensor], other: list[Tensor]) -> bool:
    return all(map(torch.equal, one, other))


def test_layers_of_a_repeat_keep_what_enters_them() -> None:
    """In training alone, and to the bit: once more each layer, not what is around them."""
    plain, less = pair("gpt", **GPT)
    tokens = torch.randint(11, (2, 40))
    (wanted, much), (found, little) = learned(plain, tokens), learned(less, tokens)
    assert same(wanted, found) and 2 * little < much
    plain.eval(), less.eval()
    (wanted, much), (found, little) = learned(plain, tokens), learned(less, tokens)
    assert same(wanted, found) and little == much


def test_what_is_dropped_is_dropped_again() -> None:
    torch.manual_seed(0)
    spec = archc.parse(DROPPED)
    plain, less = spec.module(d=6, H=2, K=5), spec.module(d=6, H=2, K=5, recompute=True)
    less.load_state_dict(plain.state_dict())
    x = torch.randn(2, 30, 6)
    assert same(learned(plain, x)[0], learned(less, x)[0])
    assert not torch.equal(less(x), less(x))


def test_a_layer_without_a_repeat_is_one() -> None:
    """Packed sequences, and states that are handed on, go through it as before."""
    plain, less = pair("gla", d=8, H=2, K=4, V=3, r=2)
    x, borders = torch.randn(1, 90, 8), torch.tensor([0, 0, 30, 90])
    wanted, much = learned(plain, x, cu_seqlens=borders)
    found, little = learned(less, x, cu_seqlens=borders)
    assert same(wanted, found) and 4 * little < much
    _, state = less(x, return_state=True)
    more = less(x, state=state)
    (given,) = torch.autograd.grad(more.sum(), [less.W_k])
    _, state = plain(x, return_state=True)
    (wanted_slope,) = torch.autograd.grad(plain(x, state=state).sum(), [plain.W_k])
    assert torch.equal(given, wanted_slope)


@pytest.mark.parametrize("again", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_copies_keep_less_too(again: object) -> None:
    """Of their own parameters."""
    plain, less = pair("gpt", **GPT)
    made, tokens = again(less), torch.randint(11, (2, 40))  # type: ignore[operator]
    with torch.no_grad():
        for p in less.parameters():
            p.zero_()
    (wanted, much), (found, little) = learned(plain, tokens), learned(made, tokens)
    assert same(wanted, found) and 2 * little < much


def test_one_graph_of_torch_compile() -> None:
    plain, less = pair("gpt", **GPT)
    tokens = torch.randint(11, (2, 40))
    made = torch.compile(less, backend="aot_eager", fullgraph=True)
    for x, y in zip(learned(plain, tokens)[0], learned(made, tokens)[0], strict=True):
        torch.testing.assert_close(x, y)
