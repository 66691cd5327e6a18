"""State spaces against scipy.signal.dlsim and a loop."""

from __future__ import annotations

import torch

import archc
from tests.specs.agreement import agree
from tests.specs.references import state_space
from tests.specs.references.weights import randomise


def values(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def test_constant() -> None:
    layer = archc.load("ssm").module(d=6, D=10, dtype=torch.float64)
    randomise(layer, seed=0)
    with torch.no_grad():
        layer.A.mul_(0.6)  # an eigenvalue outside the unit circle would compare overflow
    x = values(2, 40, 6)
    agree("ssm", "scipy.signal.dlsim", layer(x), state_space.ssm(layer.state_dict(), x))


def test_selective() -> None:
    layer = archc.load("ssm_selective").module(d=6, D=8, N=4, dtype=torch.float64)
    randomise(layer, seed=0)
    x = values(2, 20, 6)
    theirs = state_space.selective_ssm(layer.state_dict(), x)
    agree("ssm_selective", "a loop from the formulas", layer(x), theirs)
