"""Calls as graphs, without a GPU."""

from __future__ import annotations

import gc
import weakref
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch

from archc.bench.clock import captured


class Stub:
    """A stream or a graph that does nothing."""

    def __init__(self) -> None:
        self.replayed = 0

    def wait_stream(self, other: Any) -> None:
        """Nothing to wait for."""

    def replay(self) -> None:
        """Count it."""
        self.replayed += 1


def test_a_graph_holds_the_tensors_of_its_call(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = Stub()
    for name in ("Stream", "current_stream"):
        monkeypatch.setattr(torch.cuda, name, Stub)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: graph)
    modes: list[str] = []
    monkeypatch.setattr(torch.cuda, "stream", lambda given: nullcontext())

    def recording(given: object, capture_error_mode: str) -> AbstractContextManager[None]:
        modes.append(capture_error_mode)
        return nullcontext()

    monkeypatch.setattr(torch.cuda, "graph", recording)
    state, settled = torch.zeros(2), list[float]()
    seen = weakref.ref(state)
    replay = captured(
        lambda state=state: state.add_(1),
        lambda: settled.append(float(torch.as_tensor(seen())[0])),
        "relaxed",
    )
    assert (settled, modes) == ([3.0], ["relaxed"])  # after the calls before, and not recorded
    del state
    gc.collect()
    replay()
    held = seen()
    assert graph.replayed == 1 and held is not None and held.tolist() == [4.0, 4.0]
