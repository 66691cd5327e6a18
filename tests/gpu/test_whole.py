"""Whole layers on a GPU as they are trained: under autocast, with gradient checkpointing, and of
few and of many tokens, by their kernels beside their eager form in float64; keeping less, and with
products on a stream of their own, beside themselves.

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
from archc.runtime import projections
from tests.lowering.test_token import PARTLY, PLANE, WIDE
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


def built(
    name: str, tokens: int, backend: str = "auto", **more: int
) -> tuple[nn.Module, dict[str, Tensor]]:
    """A layer in float64, and its inputs."""
    sizes = {**SMALL[name], **more}
    spec = archc.load(name, **sizes)
    exact = randomise(spec.module(dtype=torch.float64, backend=backend), seed=0)
    values = inputs(spec.layer, sizes, B=2, T=tokens, seed=1)
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


@pytest.mark.parametrize("dim", [60, 100])
@pytest.mark.parametrize("name", ["attention", "fox", "gated_delta", "gla", "kda", "mlstm"])
def test_heads_that_fill_no_tile(name: str, dim: int) -> None:
    """Dims of keys, and those of values where these are a size of their own, of 60 and of 100."""
    known = archc.load(name, **SMALL[name]).layer.args
    more = {arg.name: dim for arg in known if arg.name in ("K", "V")}
    assert more
    exact, values = built(name, 70, **more)
    assert off(on_gpu(exact, values, plainly), numbers(exact, values, plainly)) < LIMIT


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        (WIDE, {"d": 3, "H": 2, "K": 5}),
        (PLANE, {"d": 3, "n": 3, "m": 5}),
        (PARTLY, {"d": 3, "H": 2, "K": 6, "R": 4}),
    ],
)
@pytest.mark.parametrize("tokens", [1, 15, 63])
def test_layers_with_odd_chains(text: str, sizes: dict[str, int], tokens: int) -> None:
    spec = archc.parse(text)
    exact = randomise(spec.module(**sizes, dtype=torch.float64), seed=0)
    values = inputs(spec.layer, sizes, B=2, T=tokens, seed=1)
    assert off(on_gpu(exact, values, plainly), numbers(exact, values, plainly)) < LIMIT


def kept_by(layer: nn.Module, x: Tensor) -> int:
    """The bytes that a forward leaves until its gradient, its output among them."""
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    made = layer(x)
    kept = torch.cuda.memory_allocated() - before
    del made
    return kept


HEADS = {"d": 128, "H": 2, "K": 64, "V": 64}


@pytest.mark.parametrize(
    ("name", "sizes"), [("gated_delta", HEADS), ("gla_block", HEADS | {"f": 256})]
)
def test_less_is_kept_for_the_same_numbers(name: str, sizes: dict[str, int]) -> None:
    """To the bit, three times: from the third on calls are done again."""
    x, spec = torch.randn(2, 2048, 128).cuda(), archc.load(name)
    plain = randomise(spec.module(**sizes), seed=0).cuda()
    less = spec.module(**sizes, recompute=True).cuda()
    less.load_state_dict(plain.state_dict())
    for _ in range(3):
        found, wanted = (numbers(layer, {"x": x}, plainly) for layer in (less, plain))
        assert all(map(torch.equal, found, wanted))
        assert kept_by(less, x) < kept_by(plain, x)


@pytest.mark.parametrize("name", ["kda", "gated_delta", "gla"])
def test_products_on_a_stream_of_their_own(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """To the bit what products one after the other are, 200 times, from another stream too, while
    others take at once what is let go of."""
    torch.manual_seed(0)
    kind, sizes = {"device": "cuda", "dtype": torch.bfloat16}, {"H": 16, "K": 128, "V": 128}
    layer = archc.load(name).module(d=2048, **sizes, **kind)
    x, stream = torch.randn(2, 8192, 2048, **kind), torch.cuda.Stream()
    begun, own = list[int](), projections.arriving
    with torch.no_grad():
        with monkeypatch.context() as alone:
            alone.setattr(projections, "LONG", 1 << 60)
            wanted = layer(x)
        monkeypatch.setattr(
            projections, "arriving", lambda *given: (begun.append(1), own(*given))[1]
        )
        torch.cuda.synchronize()
        for turn in range(200):
            with torch.cuda.stream(stream if turn % 3 == 2 else torch.cuda.current_stream()):
                made = layer(x)
                for _ in range(turn % 5):
                    torch.full((1 << 25,), float("nan"), device="cuda", dtype=torch.bfloat16)
                assert torch.equal(made, wanted)
    assert len(begun) == 200
