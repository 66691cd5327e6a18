"""Linear attention, gated and delta-rule specs against fla's step-by-step functions, transformers'
kimi_linear, and formulas written as loops."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

import archc
from tests.specs.agreement import agree
from tests.specs.references import fla_naive, gla_formula, kimi, softmax
from tests.specs.references.weights import randomise

B, T, H, K, V = 2, 19, 3, 8, 6
VARIANTS = Path(__file__).parent / "variants"


def values(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def unit(seed: int, *shape: int) -> Tensor:
    return torch.nn.functional.normalize(values(seed, *shape), dim=-1)


def strength(seed: int, *shape: int) -> Tensor:
    return torch.sigmoid(values(seed, *shape))


def memory_inputs() -> dict[str, Tensor]:
    return {"q": unit(1, B, T, H, K), "k": unit(2, B, T, H, K), "v": values(3, B, T, H, V)}


def from_state(spec: str, inputs: dict[str, Tensor], S: Tensor) -> tuple[Tensor, NamedTuple]:
    """`.op` from a state that is not empty."""
    op = archc.load(spec).op
    _, empty = op(**{name: value[:, :0] for name, value in inputs.items()})
    return op(**inputs, state=empty._replace(S=S))


DELTA = {"beta": strength(4, B, T, H)}
PER_HEAD = {"log_alpha": -values(5, B, T, H).abs()}
PER_CHANNEL = {"log_alpha": -values(6, B, T, H, K).abs()}
PRODUCT = {
    "k": unit(7, B, T, 2, H, K),
    "v": values(8, B, T, 2, H, V),
    "beta": 2 * strength(9, B, T, 2, H),
}


@pytest.mark.parametrize(
    ("spec", "reference", "inputs"),
    [
        ("linear_attention_simple", fla_naive.linear_attention, {}),
        ("retention", fla_naive.retention, PER_HEAD),
        ("delta", fla_naive.delta, DELTA),
        ("gated_delta", fla_naive.gated_delta, PER_HEAD | DELTA),
        ("gated_delta_product", fla_naive.gated_delta_product, PER_HEAD | PRODUCT),
        ("kda", fla_naive.kda, PER_CHANNEL | DELTA),
    ],
)
def test_memory_alone(spec: str, reference, inputs: dict[str, Tensor]) -> None:
    """Output and final state, from a state that is not empty."""
    inputs = memory_inputs() | inputs
    S = values(10, B, H, K, V)
    o, state = from_state(spec, inputs, S)
    theirs, final = reference(**inputs, S=S)
    agree(spec, "fla naive, output of the memory", o, theirs)
    agree(spec, "fla naive, final state", state.S, final)


def test_gla_memory_alone() -> None:
    """GLA's decay is a power of a sigmoid: it is a decay, so it enters as its logarithm too."""
    inputs, S = memory_inputs() | PER_CHANNEL, values(10, B, H, K, V)
    o, state = from_state("gla", inputs, S)
    theirs, final = fla_naive.gla(**inputs, S=S)
    agree("gla", "fla naive, output of the memory", o, theirs)
    agree("gla", "fla naive, final state", state.S, final)


def test_normalised_memory_alone() -> None:
    inputs = memory_inputs() | {"q": strength(1, B, T, H, K), "k": strength(2, B, T, H, K)}
    o, state = archc.load("linear_attention").op(**inputs)
    theirs, (S, z) = fla_naive.normalised_linear_attention(**inputs)
    agree("linear_attention", "fla naive, output of the memory", o, theirs)
    agree("linear_attention", "fla naive, final state S", state.S, S)
    agree("linear_attention", "fla naive, final state z", state.z, z[:, 0])


def test_linear_attention_layer() -> None:
    """The whole layer, its feature map included."""
    layer = archc.load("linear_attention").module(d=24, H=H, K=K, V=V)
    weights = randomise(layer, seed=0).state_dict()
    x = values(11, B, T, 24)

    def heads(name: str) -> Tensor:
        return torch.einsum("btd,dhk->bthk", x, weights[name])

    feature = torch.nn.functional.elu
    o, _ = fla_naive.normalised_linear_attention(
        feature(heads("W_q")) + 1, feature(heads("W_k")) + 1, heads("W_v")
    )
    theirs = torch.einsum("bthv,hvd->btd", o, weights["W_o"])
    agree("linear_attention", "fla naive between torch projections", layer(x), theirs)


def test_retention_layer() -> None:
    """The whole layer, with its rotations as products of complex numbers."""
    layer = archc.load("retention").module(d=24, H=H, K=K, V=V)
    weights = randomise(layer, seed=0).state_dict()
    x = values(15, B, T, 24)
    angles = torch.arange(T)[:, None] * 10000.0 ** (-torch.arange(0, K, 2) / K)

    def heads(name: str) -> Tensor:
        return torch.einsum("btd,dhk->bthk", x, weights[name])

    def turned(y: Tensor) -> Tensor:
        pairs = torch.view_as_complex(y.unflatten(-1, (-1, 2)).contiguous())
        turns = torch.polar(torch.ones_like(angles), angles)[:, None]
        return torch.view_as_real(pairs * turns).flatten(-2)

    gate = torch.nn.functional.logsigmoid(x @ weights["W_a"]) / 16
    o, _ = fla_naive.retention(turned(heads("W_q")), turned(heads("W_k")), heads("W_v"), gate)
    o = torch.nn.functional.layer_norm(o, (V,), eps=1e-6)
    gated = torch.nn.functional.silu(heads("W_g")) * o
    theirs = torch.einsum("bthv,hvd->btd", gated, weights["W_o"])
    agree("retention", "fla naive between torch projections", layer(x), theirs)


def test_full_linear_attention() -> None:
    layer = archc.load("linear_attention_full").module(d=24, H=H, dtype=torch.float64)
    randomise(layer, seed=0)
    x = values(12, B, T, 24).double()
    theirs = softmax.linear_attention(layer.state_dict(), x)
    agree("linear_attention_full", "the formula over all pairs of tokens", layer(x), theirs)


def test_gla_layer() -> None:
    layer = archc.load("gla").module(d=24, H=H, r=4, dtype=torch.float64)
    randomise(layer, seed=0)
    x = values(13, B, T, 24).double()
    theirs = gla_formula.layer(layer.state_dict(), x, tau=16, eps=1e-5)
    agree("gla", "a loop from the formulas, layer", layer(x), theirs)


def test_gla_block() -> None:
    block = archc.load("gla_block").module(d=24, H=H, f=32, dtype=torch.float64)
    randomise(block, seed=0)
    x = values(14, B, T, 24).double()
    theirs = gla_formula.block(block.state_dict(), x, tau=16, eps=1e-5)
    agree("gla_block", "a loop from the formulas, block", block(x), theirs)


def test_gla_block_as_printed() -> None:
    """A text that adds the block's input twice describes another block, and can be said too."""
    sizes = {"d": 24, "H": H, "f": 32, "dtype": torch.float64}
    printed = archc.load(str(VARIANTS / "gla_block_as_printed.arch")).module(**sizes)
    randomise(printed, seed=0)
    x = values(15, B, T, 24).double()
    theirs = gla_formula.block(printed.state_dict(), x, tau=16, eps=1e-5, second=x)
    agree("gla_block", "a loop from the formulas, as printed", printed(x), theirs)


@pytest.mark.parametrize("length", [12, pytest.param(70, marks=pytest.mark.slow)])
def test_kda_layer(tmp_path: Path, length: int) -> None:
    """A whole layer; 70 tokens take the reference, which computes in float32, across its chunks."""
    sizes = {"d": 24, "H": 2, "K": 8, "width": 4}
    theirs = kimi.layer(tmp_path, B=2, T=length, **sizes, seed=6)
    layer = archc.load("kda").module(**sizes, V=8, r=8, eps=theirs["eps"], dtype=torch.float64)
    layer.load_state_dict(theirs["weights"])
    against = f"transformers kimi_linear, layer, {length} tokens"
    agree("kda", against, layer(theirs["x"]), theirs["y"])
