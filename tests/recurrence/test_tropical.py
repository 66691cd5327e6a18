"""A running maximum, in chunks and token by token."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from archc.recurrence.frame import Frame
from archc.recurrence.scan import Carried
from archc.recurrence.tropical import running_max
from tests.graphs import Sketch
from tests.recurrence.forms import Ids, agree, chunked, gradients, numbers, run, same, states

START = {"m[0]": "batch H D"}


def update(sketch: Sketch, ids: Ids) -> dict[str, int]:
    """max(a + m[t-1], b)."""
    moved = sketch.fn("add", ids["a"], ids["m[t-1]"]) if "a" in ids else ids["m[t-1]"]
    return {"m": sketch.fn("max", moved, ids["b"])}


@pytest.mark.parametrize(
    "given",
    [
        {"a": "batch t H D", "b": "batch t H D"},
        {"a": "batch t H", "b": "H D"},
        {"a": "D", "b": "batch t D"},
        {"a": "D", "b": "H"},
        {"b": "batch t H D"},
        {"b": "D"},
    ],
)
def test_the_form_is_the_recurrence(given: dict[str, str]) -> None:
    inputs = {**given, **START}

    def build(frame: Frame, ids: Ids) -> list[Carried]:
        (state,) = states(inputs)
        return [running_max(frame, state, ids.get("a"), ids["b"], ids["m[0]"])]

    agree(inputs, update, build)


INPUTS = {"a": "batch t H D", "b": "batch t H D", **START}


def plain(frame: Frame, ids: Ids) -> list[Carried]:
    (state,) = states(INPUTS)
    return [running_max(frame, state, ids["a"], ids["b"], ids["m[0]"])]


@pytest.mark.parametrize("what", ["start", "values", "shifts", "all"])
def test_minus_infinity_stays_and_is_no_nan(what: str) -> None:
    def given(length: int) -> dict[str, Tensor]:
        values = numbers(INPUTS, length)
        if what in ("start", "all"):
            values["m[0]"][:] = -torch.inf
        if what in ("values", "all"):
            values["b"][:] = -torch.inf
        if what in ("shifts", "all"):
            values["a"][:, 1::2] = -torch.inf
        return values

    agree(INPUTS, update, plain, given, grads=False)


def test_of_a_gauge_only_the_initial_value_before_the_first_token_has_a_gradient() -> None:
    def build(frame: Frame, ids: Ids) -> list[Carried]:
        (state,) = states(INPUTS)
        return [running_max(frame, state, ids["a"], ids["b"], ids["m[0]"], gauge=True)]

    form, other = chunked(INPUTS, build), chunked(INPUTS, plain)
    for length, chunk in ((0, 3), (1, 3), (7, 3)):
        given = {n: x.requires_grad_() for n, x in numbers(INPUTS, length).items()}
        found = run(form, given, length, chunk)
        same(found, run(other, given, length, chunk))
        grads = gradients({"before": found["before m"]}, given)
        weights = torch.randn(
            found["before m"].shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64
        )
        assert torch.allclose(grads["m[0]"], weights[:, :1].sum(1))
        assert not grads["a"].any() and not grads["b"].any()
        assert not gradients({"after": found["after m"]}, given)["m[0]"].any()
