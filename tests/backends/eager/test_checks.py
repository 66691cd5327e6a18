"""What generated modules refuse: sizes, tensors and states that do not fit, each by name."""

from __future__ import annotations

import math
from typing import Any

import pytest
import sympy
import torch
from archc.backends.eager.selfcheck import SPREAD, bounds
from archc.backends.load import load
from torch import nn

import archc
from archc.compile import text_of
from archc.dims import size_symbol
from archc.ir.layer import Init

SPEC = """
layer Attend(d, H, K = d / H, p = 0.5):
    input x[d], y[H, K]
    input tokens in d
    param W[d, H, K]; E[d, H, K]
    require K % 2 == 0
    recurrence S[K] over H:
        S[t] = p * S[t-1] + x_h
    x_h = x @ W + y + E[tokens]
    output z = S
"""


@pytest.fixture(scope="module")
def cls() -> Any:
    return load(text_of(archc.parse(SPEC).layer), "checks").Attend


@pytest.fixture
def layer(cls: Any) -> nn.Module:
    return cls(d=8, H=2)


def inputs(**changes: Any) -> dict[str, Any]:
    known = {
        "x": torch.randn(3, 5, 8),
        "y": torch.randn(3, 5, 2, 4),
        "tokens": torch.randint(0, 8, (3, 5)),
    }
    return {**known, **changes}


@pytest.mark.parametrize(
    ("sizes", "error", "message"),
    [
        ({"d": 8, "H": 3}, ValueError, "`K` = 8 / 3 is not a whole number"),
        ({"d": 8, "H": 0}, ValueError, "`H` must be at least 1, got 0"),
        ({"d": -8, "H": 2}, ValueError, "`d` must be at least 1, got -8"),
        ({"d": 8.0, "H": 2}, TypeError, "`d` must be an int, got 8.0"),
        ({"d": True, "H": 2}, TypeError, "`d` must be an int, got True"),
        ({"d": 8, "H": 2, "K": 3}, ValueError, "requires K % 2 == 0, got K = 3"),
        ({"d": 8, "H": 2, "p": "a"}, TypeError, "`p` must be a number, got 'a'"),
        ({"H": 2}, TypeError, "'d'"),
    ],
)
def test_sizes(cls: Any, sizes: dict[str, Any], error: type[Exception], message: str):
    with pytest.raises(error, match=message.replace("(", r"\(")):
        cls(**sizes)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"x": torch.randn(3, 5)}, ValueError, r"`x` must be \[B, T, d\], got .* shape \[3, 5\]"),
        ({"x": torch.randn(3, 5, 7)}, ValueError, r"`x` must be \[B, T, d\] with d = 8, got"),
        ({"y": torch.randn(3, 4, 2, 4)}, ValueError, r"`y` must be \[B, T, H, K\] with T = 5"),
        ({"y": torch.randn(2, 5, 2, 4)}, ValueError, "with B = 3"),
        ({"x": torch.ones(3, 5, 8).double()}, TypeError, "`x` is torch.float64, the layer"),
        ({"x": torch.ones(3, 5, 8, dtype=torch.int64)}, TypeError, "`x` must hold real numbers"),
        ({"x": torch.randn(3, 5, 8, device="meta")}, ValueError, "`x` is on meta, not on cpu"),
        ({"x": [1.0]}, TypeError, "`x` must be a tensor, got list"),
        ({"x": None}, TypeError, "`x` must be a tensor, got NoneType"),
        ({"tokens": torch.randn(3, 5)}, TypeError, "`tokens` must hold integers"),
        ({"state": (1, 2)}, TypeError, "`state` must be an instance of AttendState, got tuple"),
    ],
)  # fmt: skip
def test_inputs(layer: nn.Module, changes: dict[str, Any], error: type[Exception], message: str):
    with pytest.raises(error, match=message):
        layer(**inputs(**changes))


def test_a_state_of_another_batch(layer: nn.Module):
    _, state = layer(**inputs(), return_state=True)
    with pytest.raises(ValueError, match=r"`state.S` is of a batch of 3, the input of 1"):
        layer(**{name: x[:1] for name, x in inputs().items()}, state=state)


def test_autocast_may_change_the_dtype(layer: nn.Module):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert layer(**inputs(x=torch.randn(3, 5, 8, dtype=torch.bfloat16))).isfinite().all()


def test_the_state_keeps_float32(cls: Any):
    layer = cls(d=8, H=2, dtype=torch.bfloat16)
    given = {k: v.bfloat16() if v.is_floating_point() else v for k, v in inputs().items()}
    z, state = layer(**given, return_state=True)
    assert z.dtype == torch.bfloat16 and state.S.dtype == torch.float32
    assert layer.initial_state(3).S.shape == (3, 2, 4)


def test_sizes_that_a_branch_was_compiled_for():
    spec = archc.parse(
        "layer Branch(d, Q = 4):\n    input x[d]\n    param W[d, Q]; V[Q, d]\n"
        "    output y[d] = x @ W @ V if Q > 0 else x\n"
    )
    branch = load(text_of(spec.layer), "branch").Branch
    assert branch(d=3)(torch.randn(1, 2, 3)).shape == (1, 2, 3)
    with pytest.raises(ValueError, match=r"`Q` must be at least 1, got 0|compiled for"):
        branch(d=3, Q=0)


def test_names_that_mean_something_in_python_or_torch():
    spec = archc.parse(
        "layer Odd(type, half):\n    input x[type], state[half], sizes[half]\n"
        "    param forward[type, half]; F[half]; training[half] = 1; parameters[half]\n"
        "    made = x @ forward + state\n"
        "    recurrence dtype[half]:\n"
        "        dtype[t] = 0.5 * dtype[t-1] + made * F + parameters * training\n"
        "    output layer = dtype * sizes\n"
    )
    module = spec.module(type=3, half=2)
    args = torch.randn(2, 4, 3), torch.randn(2, 4, 2), torch.randn(2, 4, 2)
    y, kept = module(*args, return_state=True)
    again, _ = module(*(x[:, :1] for x in args), state=kept, return_state=True)
    assert y.shape == (2, 4, 2) and again.shape == (2, 1, 2)
    assert module.training is True and len(list(module.parameters())) == 4
    assert module.half().forward_.dtype == torch.float16


NUMBERS = tuple(map(sympy.Integer, range(1, 4)))
UNIFORM = Init("uniform", NUMBERS[1:])


@pytest.mark.parametrize(
    ("init", "ends"),
    [
        (Init("value", NUMBERS[1:2]), (2 - SPREAD, 2 + SPREAD)),
        (Init("value", (size_symbol("d"),)), (-SPREAD, SPREAD)),
        (Init("default", NUMBERS[1:2]), (-SPREAD, SPREAD)),
        (Init("default", (size_symbol("d"),)), (-SPREAD, SPREAD)),
        (UNIFORM, (2, 3)),
        (Init("neg", (UNIFORM,)), (-3, -2)),
        (Init("log", (UNIFORM,)), (math.log(2), math.log(3))),
        (Init("exp", (Init("value", NUMBERS[:1]),)), (math.e - SPREAD, math.e + SPREAD)),
    ],
)
def test_an_example_has_parameters_that_are_as_they_start(
    init: Init, ends: tuple[float, float]
) -> None:
    """Around a constant, in the range of a distribution, else around 0."""
    assert bounds(init) == pytest.approx(ends)
