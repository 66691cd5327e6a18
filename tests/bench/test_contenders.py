"""How functions are called that are timed."""

from __future__ import annotations

from collections import namedtuple
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import torch

from archc.bench.contenders import own, rows_of
from archc.bench.job import BACKWARD, FORWARD, LAYER
from archc.bench.record import peers_file
from tests.bench.test_report import JOB


def test_a_token_is_given_the_state_of_its_own_layer() -> None:
    """The first class that ended with `State` was taken, which may be one of the runtime's."""
    State = namedtuple("State", ("A", "G"))

    def memory(q: Any, *, state: Any) -> tuple[Any, ...]:
        return q, State(state.A + q, state.G)

    module = SimpleNamespace(RaggedState=namedtuple("RaggedState", ("parts",)), OneState=State)
    step = own(memory, module, replace(JOB, states=("A", "G"))).step
    assert step is not None
    one = torch.ones(1)
    (o,), after = step({"q": one}, (one, 3 * one))
    assert o == 1 and after == (2, 3)


def test_rows_at_other_shapes_are_of_memories_alone() -> None:
    rows = rows_of(peers_file(), ("fla",), (FORWARD, BACKWARD, LAYER))
    other = {row.shape for row in rows if row.elsewhere}
    assert {(1, 32768, 4, 128), (1, 16384, 32, 128)} <= other and None not in other
    assert not any(row.whole for row in rows if row.elsewhere)
