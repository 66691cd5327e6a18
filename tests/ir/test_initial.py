"""Starting values: their distributions, shapes and repeatability."""

from __future__ import annotations

import math

import pytest
import sympy
import torch
import torch.nn.functional as F

from archc.dims import exact, size_symbol
from archc.ir import layer as ir
from archc.ir.initial import sample, sample_layer
from tests.graphs import axes
from tests.ir.test_meaning import caller

SIZES = {"H": 40, "K": 50}


def draw(fn: str, *args: object, seed: int = 0) -> torch.Tensor:
    numbers = tuple(exact(str(a)) if isinstance(a, int | float) else a for a in args)
    param = ir.Param("p", axes("H K"), ir.Init(fn, numbers))
    return sample(param, SIZES, torch.Generator().manual_seed(seed))


def test_a_value_is_everywhere_the_same() -> None:
    x = draw("value", size_symbol("K") / 4)
    assert x.shape == (40, 50) and x.unique().tolist() == [12.5]


def test_a_normal_has_its_mean_and_deviation() -> None:
    x = draw("normal", 3, 0.5)
    assert x.mean().item() == pytest.approx(3, abs=0.05)
    assert x.std().item() == pytest.approx(0.5, abs=0.03)


def test_the_default_shrinks_with_the_size_that_is_contracted() -> None:
    assert draw("default", 400).std().item() == pytest.approx(1 / 20, rel=0.05)
    assert draw("default", 0).isfinite().all()


def test_a_uniform_fills_its_interval() -> None:
    x = draw("uniform", 1, 16)
    assert x.min() >= 1 and x.max() <= 16 and x.mean().item() == pytest.approx(8.5, abs=0.5)


def test_a_loguniform_is_uniform_in_the_logarithm() -> None:
    x = draw("loguniform", 0.001, 0.1)
    assert x.min() >= 0.001 and x.max() <= 0.1
    assert x.log().mean().item() == pytest.approx(math.log(0.01), abs=0.1)


def test_functions_undo_what_the_layer_does() -> None:
    inner = ir.Init("loguniform", (sympy.Rational(1, 1000), sympy.Integer(100)))
    want = draw("loguniform", 0.001, 100)
    assert torch.allclose(F.softplus(draw("inverse_softplus", inner), threshold=500), want)
    assert torch.allclose(draw("log", inner).exp(), want)
    assert torch.allclose(draw("exp", ir.Init("log", (inner,))), want)
    assert torch.allclose(-draw("neg", inner), want)
    half = ir.Init("uniform", (sympy.Rational(1, 10), sympy.Rational(9, 10)))
    assert torch.allclose(draw("logit", half).sigmoid(), draw("uniform", 0.1, 0.9))


def test_the_seed_decides() -> None:
    sizes = {"d": 3, "H": 4}
    one, again, other = (sample_layer(caller(), sizes, seed) for seed in (1, 1, 2))
    assert list(one) == ["up.W", "blocks.0.down.W"]
    assert all(torch.equal(one[name], again[name]) for name in one)
    assert not any(torch.equal(one[name], other[name]) for name in one)
    assert not torch.equal(one["up.W"], one["blocks.0.down.W"].mT)
    assert torch.equal(sample_layer(caller(), sizes, 1, torch.float32)["up.W"], one["up.W"].float())
