"""Experts computed for the tokens that have chosen them, against every expert for every token."""

from __future__ import annotations

import inspect
import sys
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

import archc
from archc.runtime.routed import (
    grouped_product,
    product_of_blocks,
    routed_by,
    routed_tokens,
    summed_pairs,
)

SIZES: dict[str, Any] = {"d": 6, "f": 4, "N": 5}


@cache
def spec() -> Any:
    return archc.load("moe")


def layer(n: int, **weights: Any) -> Any:
    torch.manual_seed(0)
    made = spec().module(n=n, dtype=torch.float64, **SIZES)
    with torch.no_grad():
        for name, value in weights.items():
            getattr(made, name).copy_(torch.as_tensor(value, dtype=torch.float64))
    return made


def dense(moe: Any, x: Tensor) -> Tensor:
    """Every expert for every token, and a mask."""
    p = torch.sigmoid(x @ moe.W_r)
    score = (p + moe.bias).detach()
    chosen = torch.zeros_like(score, dtype=torch.bool)
    for row in range(len(score)):
        for at in range(score.shape[1]):
            first = score[row, at].sort(descending=True, stable=True).indices[: moe.n]
            for e in first:
                chosen[row, at, e] = score[row, at, e] != -torch.inf
    w = torch.where(chosen, p, 0)
    w = torch.where(chosen, w / w.sum(-1, keepdim=True), 0)
    hidden = torch.nn.functional.silu(torch.einsum("btd,ndf->btnf", x, moe.W_g))
    hidden = hidden * torch.einsum("btd,ndf->btnf", x, moe.W_u)
    return torch.einsum("btn,btnf,nfd->btd", w, hidden, moe.W_d)


def with_gradients(made: Tensor, moe: nn.Module, x: Tensor) -> list[Tensor]:
    weight = torch.cos(torch.arange(made.numel(), dtype=torch.float64)).view(made.shape)
    learned = [p for name, p in moe.named_parameters() if name != "bias"]
    return [made, *torch.autograd.grad((made * weight).sum(), [*learned, x])]


UNLUCKY: dict[str, dict[str, Any]] = {
    "usual": {"n": 2},
    "an expert without a token": {"n": 2, "bias": [0, 0, -9, 0, 0]},
    "all tokens at one expert": {"n": 1, "bias": [0, 0, 0, 9, 0]},
    "every expert": {"n": 5},
    "ties": {"n": 3, "W_r": torch.zeros(6, 5)},
    "a score that is NaN": {"n": 2, "bias": [0, torch.nan, 0, 0, 0]},
    "fewer that can be chosen": {"n": 3, "bias": [0, *[-torch.inf] * 3, 0]},
}


@pytest.mark.parametrize("case", UNLUCKY)
def test_routed_is_dense(case: str) -> None:
    moe = layer(**UNLUCKY[case])
    x = torch.randn(2, 7, 6, dtype=torch.float64).requires_grad_()
    found, wanted = (with_gradients(f(x), moe, x) for f in (moe, lambda x: dense(moe, x)))
    for have, want in zip(found, wanted, strict=True):
        torch.testing.assert_close(have, want, rtol=1e-12, atol=1e-12)


def test_decode_and_no_tokens() -> None:
    moe, x = layer(2), torch.randn(3, 1, 6, dtype=torch.float64)
    torch.testing.assert_close(moe(x), dense(moe, x), rtol=1e-12, atol=1e-12)
    empty = x[:, :0].requires_grad_()
    made = moe(empty)
    made.sum().backward()
    assert made.shape == empty.shape and not moe.W_g.grad.any()


def test_a_token_that_is_nan_reaches_no_other() -> None:
    moe, x = layer(2), torch.randn(1, 4, 6, dtype=torch.float64)
    good = moe(x)
    x[0, 2] = torch.nan
    made = moe(x)
    assert made[0, 2].isnan().all() and torch.equal(made[0, [0, 1, 3]], good[0, [0, 1, 3]])


def test_what_each_expert_is_given_is_counted() -> None:
    """The products of the module are of the chosen pairs alone: 2 of 5 experts, 7 tokens."""
    x = torch.randn(1, 7, 6, dtype=torch.float64)
    moe = layer(2)
    with FlopCounterMode(display=False) as counted, torch.no_grad():
        moe(x)
    router, pairs = 2 * 7 * 6 * 5, 7 * 2
    assert counted.get_total_flops() == router + 3 * 2 * pairs * 6 * 4


BY_HAND = """
layer Chosen(d, f, N, n):
    input x[d]
    param W_r[d, N]; W[N, d, f]; V[N, f, d]; b[N, d]
    p = softmax[N](x @ W_r)
    u = silu(sum[d](x * W))
    z = sum[f](u * V) + b
    output y[d] = sum[N](where(top(n, p), p, 0) * z)
"""


def test_it_is_found_from_the_algebra() -> None:
    """Where nothing is called a route; and not where an expert's value leaves it."""
    made: Any = archc.parse(BY_HAND).module(n=2, dtype=torch.float64, **SIZES)
    x = torch.randn(1, 7, 6, dtype=torch.float64)
    p = (x @ made.W_r).softmax(-1)
    w = torch.where(p >= p.topk(2).values[..., -1:], p, 0)
    hidden = torch.nn.functional.silu(torch.einsum("btd,ndf->btnf", x, made.W))
    each = torch.einsum("btnf,nfd->btnd", hidden, made.V) + made.b
    wanted = torch.einsum("btn,btnd->btd", w, each)
    torch.testing.assert_close(made(x), wanted, rtol=1e-12, atol=1e-12)
    assert source(made).count("grouped_product(") == 2
    whole = archc.parse(BY_HAND + "    output u[N, f]\n").module(n=2, **SIZES)
    assert "routed_by" not in source(whole)


def source(module: nn.Module) -> str:
    return inspect.getsource(sys.modules[type(module).__module__])


@pytest.mark.parametrize("pairs", [0, 1, 3, 14, 40])
def test_products_of_blocks(pairs: int) -> None:
    """Where torch traces, how many pairs chose a place is not looked at; gradients too."""
    torch.manual_seed(pairs)
    x, weight = torch.randn(pairs, 6).double(), torch.randn(5, 6, 4).double()
    x, weight = x.requires_grad_(), weight.requires_grad_()
    places = torch.randint(5, (pairs, 1)) % 4 + torch.randint(2, (pairs, 1))
    chosen = torch.zeros(pairs, 5, dtype=torch.bool).scatter(1, places, True)
    routed = routed_by(chosen, 1)
    found, wanted = product_of_blocks(x, weight, routed), grouped_product(x, weight, routed)
    torch.testing.assert_close(found, wanted)
    slope = torch.randn(pairs, 4).double()
    for have, want in zip(
        *(torch.autograd.grad((y * slope).sum(), [x, weight]) for y in (found, wanted)), strict=True
    ):
        torch.testing.assert_close(have, want)
    mapped = torch.vmap(lambda x: grouped_product(x, weight, routed))(x[None])
    torch.testing.assert_close(mapped[0], wanted)


@pytest.mark.parametrize("count", [1, 2])
def test_pairs_and_tokens_are_each_the_gradient_of_the_other(count: int) -> None:
    """By looking values up: a GPU adds bfloat16 to places that others add to one by one."""
    torch.manual_seed(3)
    route = routed_by(torch.rand(2, 7, 4).argsort(-1) < count, count)
    x, rows = torch.randn(2, 7, 3).double(), torch.randn(14 * count, 3).double()
    asked: list[str] = []

    class Asked(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None):
            asked.append(str(func))
            return func(*args, **(kwargs or {}))

    for call, given in ((routed_tokens, x), (summed_pairs, rows)):
        own = given.requires_grad_()
        made = call(own, route)
        weight = torch.randn_like(made)
        with Asked():
            (found,) = torch.autograd.grad((made * weight).sum(), own)
        units = torch.eye(given.numel()).double().view(-1, *given.shape)
        wanted = torch.stack([(call(each, route) * weight).sum() for each in units]).view(
            given.shape
        )
        torch.testing.assert_close(found, wanted)
        assert torch.autograd.gradgradcheck(lambda z, c=call: c(z, route).sin(), own)
    assert "aten.index_select.default" in asked
    assert not [each for each in asked if "index_add" in each or "index_put" in each]
