"""Whole layers on a GPU as they are trained: under autocast, with gradient checkpointing, and of
few and of many tokens, by their kernels beside their eager form in float64.

    python -m pytest -m gpu -n 12 tests/gpu/test_whole.py
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import archc
from tests.specs.cases import SMALL, inputs
from tests.specs.references.weights import randomise
from tests.specs.test_continued import first

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]

KINDS = ("delta", "fox", "gated_delta", "lfm2", "moe", "swiglu")
"""A layer of each kind: memories, folds, convolutions, choices, gates alone."""

LIMIT = 2e-4

Call = Callable[[nn.Module, dict[str, Tensor]], Tensor]


def plainly(layer: nn.Module, values: dict[str, Tensor]) -> Tensor:
    """The first output."""
    return first(layer(**values))


def autocast(layer: nn.Module, values: dict[str, Tensor]) -> Tensor:
    """The same in bfloat16, parameters and inputs in float32."""
    with torch.autocast("cuda", torch.bfloat16):
        return plainly(layer, values)


def checkpointed(layer: nn.Module, values: dict[str, Tensor]) -> Tensor:
    """The same, made again for the gradient."""
    return first(checkpoint(layer, use_reentrant=False, **values))


def built(name: str, tokens: int, backend: str = "auto") -> tuple[nn.Module, dict[str, Tensor]]:
    """A layer in float64, and its inputs."""
    spec = archc.load(name, **SMALL[name])
    exact = randomise(spec.module(dtype=torch.float64, backend=backend), seed=0)
    values = inputs(spec.layer, SMALL[name], B=2, T=tokens, seed=1)
    return exact, {op.name: values[op.name] for _, op in spec.layer.inputs if not op.optional}


def numbers(layer: nn.Module, values: dict[str, Tensor], call: Call) -> list[Tensor]:
    """The output, and the gradients of a fixed sum of it."""
    made = call(layer, values)
    weights = torch.linspace(-1, 1, made.shape[-1], device=made.device, dtype=torch.float64)
    learned = [each for each in layer.parameters() if each.requires_grad]
    total = (made * weights).sum()
    return [made.detach(), *torch.autograd.grad(total, learned, materialize_grads=True)]


def on_gpu(exact: nn.Module, values: dict[str, Tensor], call: Call) -> list[Tensor]:
    """The same in float32 on the GPU."""
    given = {k: (x.float() if x.is_floating_point() else x).cuda() for k, x in values.items()}
    return numbers(copy.deepcopy(exact).float().cuda(), given, call)


def off(found: list[Tensor], wanted: list[Tensor]) -> float:
    """The largest difference, each against the largest number of its tensor, or a thousandth of
    that of all."""
    least = 1e-3 * max(float(x.abs().max()) for x in wanted[1:])
    pairs = zip(found, wanted, strict=True)
    return max(
        float((a.double().cpu() - b).abs().max()) / max(float(b.abs().max()), least)
        for a, b in pairs
    )


@pytest.mark.parametrize("tokens", [1, 15, 63, 4099])
@pytest.mark.parametrize("name", KINDS)
def test_tokens(name: str, tokens: int) -> None:
    exact, values = built(name, tokens)
    assert off(on_gpu(exact, values, plainly), numbers(exact, values, plainly)) < LIMIT


@pytest.mark.parametrize("name", KINDS)
def test_autocast(name: str) -> None:
    """In the dtypes of the eager form, and about as far off: kernels round more operands of
    products (a delta rule's weights are 2.3 times as far off on an H200)."""
    exact, values = built(name, 63)
    eager, _ = built(name, 63, "eager")
    found, other = (on_gpu(layer, values, autocast) for layer in (exact, eager))
    assert [x.dtype for x in found] == [x.dtype for x in other]
    wanted = numbers(exact, values, plainly)
    assert off(found, wanted) < 3 * off(other, wanted) + 1e-2


@pytest.mark.parametrize("name", KINDS)
def test_checkpointing(name: str) -> None:
    """The same to the bit."""
    exact, values = built(name, 63)
    found, wanted = (on_gpu(exact, values, call) for call in (checkpointed, plainly))
    for made, plain in zip(found, wanted, strict=True):
        assert torch.equal(made, plain)
