"""The Mesa layer, whose meaning is an exact solution."""

from __future__ import annotations

import torch

import archc
from tests.specs.agreement import agree
from tests.specs.references import mesa
from tests.specs.references.weights import randomise

EPS = 1e-6


def layer_and_input(T: int) -> tuple[torch.nn.Module, torch.Tensor]:
    layer = archc.load("mesa").module(d=16, H=2, eps=EPS, dtype=torch.float64)
    x = torch.randn(2, T, 16, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return randomise(layer, seed=0), x


def test_exact() -> None:
    layer, x = layer_and_input(T=21)
    theirs = mesa.exact(layer.state_dict(), x, EPS)
    agree("mesa", "torch.linalg.solve in a loop", layer(x), theirs, limit=1e-8)


def test_conjugate_gradients_reach_the_solution() -> None:
    """The number of steps that the spec asks for is enough."""
    layer, x = layer_and_input(T=21)
    theirs = mesa.iterated(layer.state_dict(), x, EPS, steps=30)
    agree("mesa", "30 conjugate gradient steps in a loop", layer(x), theirs)


def test_conjugate_gradients_of_fla() -> None:
    """30 steps of an iteration that adds 1e-5 to its denominators, in float32."""
    layer, x = layer_and_input(T=24)
    theirs = mesa.by_fla(layer.state_dict(), x, EPS, steps=30)
    agree("mesa", "fla naive, 30 conjugate gradient steps", layer(x), theirs, limit=1e-3)
