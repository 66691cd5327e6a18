"""Dropout of attention weights by kernels on a GPU, against the formula in float64 with the factors
of the same seed."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from archc.backends.load import load
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import archc
from archc.compile import text_of
from archc.runtime.philox import factor_of_seed
from tests.attention.files import DROPPED
from tests.attention.test_dropout import SEED, SIZES, of_formula

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]
LIMITS = {torch.float32: 2e-6, torch.bfloat16: 8e-3}


def layer_and_inputs(batch: int, tokens: int, dtype: torch.dtype) -> tuple[Any, list[Tensor]]:
    """A layer in training whose seed is known, and q, k, v on a GPU."""
    module: Any = load(text_of(archc.parse(DROPPED).layer, "triton"), "dropped_on_a_gpu")
    layer = module.Dropped(**SIZES, G=2, p=0.3).cuda().train()
    generator = torch.Generator().manual_seed(0)
    shapes = [(batch, tokens, heads, size) for heads, size in ((4, 20), (2, 20), (2, 24))]
    drawn = [torch.randn(shape, generator=generator) for shape in shapes]
    return layer, [x.to("cuda", dtype).requires_grad_() for x in drawn]


def known_seed(layer: Any) -> None:
    """From now on the layer draws by one seed."""
    layer.forward.__globals__["dropout_seed"] = lambda *given: SEED.cuda()


def wanted(given: list[Tensor], factor: Tensor) -> list[Tensor]:
    """What the layer gives, and the gradients of q, k, v, in float64."""
    x = {n: y.detach().cpu().double().requires_grad_() for n, y in zip("qkv", given, strict=True)}
    o = of_formula("capped, grouped", factor, x)
    return [o, *torch.autograd.grad(o.sin().sum(), [*x.values()])]


def off(found: Tensor, exact: Tensor) -> float:
    """The error by the norm."""
    return float((found.detach().cpu().double() - exact).norm() / exact.norm())


@pytest.mark.parametrize("dtype", LIMITS)
def test_values_and_gradients(dtype: torch.dtype) -> None:
    layer, given = layer_and_inputs(2, 300, dtype)
    known_seed(layer)
    o = layer(*given)
    made = [o, *torch.autograd.grad(o.sin().sum(), given)]
    factor = factor_of_seed(SEED, (2, 4, 300, 300), 0.3, torch.zeros((), dtype=torch.float64))
    assert all(off(a, b) < LIMITS[dtype] for a, b in zip(made, wanted(given, factor), strict=True))


def test_packed_sequences() -> None:
    layer, given = layer_and_inputs(1, 300, torch.float32)
    known_seed(layer)
    borders = torch.tensor([0, 1, 38, 38, 300], device="cuda")
    o = layer(*given, cu_seqlens=borders)
    factor = factor_of_seed(SEED, (1, 4, 300, 300), 0.3, torch.zeros((), dtype=torch.float64))
    for begin, end in pairwise([0, 1, 38, 300]):
        own = [x[:, begin:end] for x in given]
        exact = wanted(own, factor[:, :, begin:end, : end - begin])[0]
        assert off(o[:, begin:end], exact) < LIMITS[torch.float32]


def test_a_checkpoint_drops_the_same() -> None:
    layer, given = layer_and_inputs(2, 100, torch.float32)
    slopes = []
    for again in (False, True):
        torch.manual_seed(3)
        o = checkpoint(layer, *given, use_reentrant=False) if again else layer(*given)
        assert isinstance(o, Tensor)
        slopes.append(torch.autograd.grad(o.sin().sum(), given))
    for a, b in zip(*slopes, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)
