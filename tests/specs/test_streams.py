"""Residual streams: static and input-dependent maps, alone and around a stack."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import archc
from tests.specs.agreement import agree, difference
from tests.specs.references import streams
from tests.specs.references.weights import randomise

VARIANTS = Path(__file__).parent / "variants"
n, d = 3, 8
BLOCKS = ("hyper_connected", "mhc:MixedStreams")


def values(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


def branch() -> nn.Module:
    return nn.Sequential(nn.Linear(d, d), nn.Tanh())


def test_static() -> None:
    inner = branch()
    theirs = streams.connection(n, d, inner, seed=0)
    block = archc.load("hyper_connected").module(d=d, n=n, inner=inner)
    block.load_state_dict(streams.static_weights(theirs), strict=False)
    X = values(2, 5, n, d)
    agree("hyper_connected", "hyper-connections", block(X), streams.output(theirs, X))


def test_each_stream_by_itself() -> None:
    """The package's input-dependent maps are another formula than the paper's: a variant."""
    inner = branch()
    theirs = streams.depend_on_input(streams.connection(n, d, inner, seed=0), seed=1)
    spec = archc.load(str(VARIANTS / "streams_apart.arch"))
    block = spec.module(d=d, n=n, inner=inner)
    block.load_state_dict(streams.dynamic_weights(theirs), strict=False)
    X = values(2, 5, n, d)
    agree("mhc", "hyper-connections, each stream by itself", block(X), streams.output(theirs, X))


def test_input_dependent() -> None:
    inner = branch().double()
    spec = archc.load("mhc:MixedStreams")
    block = randomise(spec.module(d=d, n=n, inner=inner, dtype=torch.float64), seed=0)
    X = values(2, 5, n, d).double()
    theirs = streams.by_formula(block.state_dict(), X, inner, steps=20, eps=1e-6)
    agree("mhc", "a loop from the formulas, one block", block(X), theirs)


def test_around_a_stack() -> None:
    """The package's connections around the layers of ours, expanded and collapsed by it."""
    model = archc.load("mhc").module(d=d, H=2, L=2, n=n, f=6, static=True)
    randomise(model, seed=0)
    connections = []
    for index, layer in enumerate(model.layers):
        for ours in (layer.hyper_connected, layer.hyper_connected_2):
            made = streams.connection(n, d, ours.normed, seed=index)
            ours.load_state_dict(streams.static_weights(made), strict=False)
            connections.append(made)
    x = values(2, 7, d)
    theirs = streams.stack(connections, x)
    agree("mhc", "hyper-connections around a stack", model(x), theirs)


@pytest.mark.parametrize("name", BLOCKS)
def test_the_mixing_matrix_is_doubly_stochastic(name: str) -> None:
    """Around a layer that gives 0: rows that sum to 1 leave equal streams as they are, columns that
    sum to 1 leave the sum of the streams."""
    zero = nn.Linear(d, d, bias=False, dtype=torch.float64)
    spec = archc.load(name)
    block = randomise(spec.module(d=d, n=n, inner=zero, steps=60, dtype=torch.float64), seed=3)
    nn.init.zeros_(zero.weight)
    X = values(2, 5, n, d).double()
    assert difference(block(X).sum(2), X.sum(2)) < 1e-12
    equal = X[:, :, :1].expand_as(X)
    assert difference(block(equal), equal) < 1e-6
    assert difference(block(X), X) > 0.1
