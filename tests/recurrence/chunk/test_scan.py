"""A state that is scaled and added to, in chunks and token by token."""

from __future__ import annotations

import pytest
import torch

from archc.recurrence.chunk.frame import Frame
from archc.recurrence.chunk.scan import Carried, diagonal
from tests.graphs import Sketch
from tests.recurrence.hand_made import Ids, agree, chunked, numbers, run, states

START = {"S[0]": "batch H D N"}


def update(sketch: Sketch, ids: Ids) -> dict[str, int]:
    """a * S[t-1] + b, each if it is there."""
    new = ids["S[t-1]"]
    if "a" in ids:
        new = sketch.fn("mul", ids["a"], new)
    return {"S": sketch.fn("add", new, ids["b"]) if "b" in ids else new}


@pytest.mark.parametrize(
    "given",
    [
        {"a": "batch t H D", "b": "batch t H D N"},
        {"a": "batch t H", "b": "batch t H N"},
        {"a": "H D N", "b": "batch t D N H"},
        {"a": "batch t D N", "b": "H D"},
        {"a": "D", "b": "N"},
        {"b": "batch t H D N"},
        {"b": "D"},
        {"a": "batch t H D N"},
        {"a": "D"},
        {},
    ],
)
def test_the_form_is_the_recurrence(given: dict[str, str]) -> None:
    inputs = {**given, **START}

    def build(frame: Frame, ids: Ids) -> list[Carried]:
        (state,) = states(inputs)
        return [diagonal(frame, state, ids.get("a"), ids.get("b"), ids["S[0]"])]

    agree(inputs, update, build)


def test_zeros_and_signs_of_decays_are_exact() -> None:
    inputs = {"a": "batch t D", "b": "batch t D", "S[0]": "batch D"}

    def build(frame: Frame, ids: Ids) -> list[Carried]:
        (state,) = states(inputs)
        return [diagonal(frame, state, ids["a"], ids["b"], ids["S[0]"])]

    def given(length: int) -> dict[str, torch.Tensor]:
        values = numbers(inputs, length)
        values["a"][:, ::2] = 0
        return values

    agree(inputs, update, build, given)


def test_an_initial_value_may_be_a_number() -> None:
    inputs = {"b": "batch t D", "S[0]": "batch D"}

    def build(frame: Frame, ids: Ids) -> list[Carried]:
        (state,) = states(inputs)
        return [diagonal(frame, state, None, ids["b"], frame.number(0))]

    form = chunked(inputs, build)
    for length in (0, 5):
        given = numbers({"b": inputs["b"]}, length)
        found = run(form, given, length, 3)
        assert found["final S"].shape == (2, 3)
        assert torch.allclose(found["final S"], given["b"].sum(1))
