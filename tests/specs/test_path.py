"""Attention with forget gates and with Householder positions, and with both."""

from __future__ import annotations

import pytest
import torch

import archc
from tests.specs.agreement import agree
from tests.specs.references import path
from tests.specs.references.weights import randomise

SIZES = {"fox": {}, "path": {"r": 5}, "path_fox": {"r": 5}}


def layer_and_input(spec: str, T: int) -> tuple[torch.nn.Module, torch.Tensor]:
    layer = archc.load(spec).module(d=12, H=2, **SIZES[spec], dtype=torch.float64)
    x = torch.randn(2, T, 12, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return randomise(layer, seed=0), x


@pytest.mark.parametrize("spec", SIZES)
def test_by_the_formula(spec: str) -> None:
    layer, x = layer_and_input(spec, T=13)
    theirs = path.by_formula(layer.state_dict(), x)
    agree(spec, "a loop from the formulas", layer(x), theirs)


@pytest.mark.parametrize("spec", SIZES)
def test_by_fla(spec: str) -> None:
    """A length that is no multiple of the chunks of the reference."""
    layer, x = layer_and_input(spec, T=29)
    theirs = path.by_fla(layer.state_dict(), x)
    agree(spec, "fla naive between torch projections", layer(x), theirs)
