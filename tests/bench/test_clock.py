"""Calls as graphs, without a GPU."""

from __future__ import annotations

import gc
import weakref
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch

from archc.bench.clock import Clock, captured, paired


def test_calls_of_a_gpu_wait_for_nothing_between_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Alone, each call once began on a GPU that had nothing to do, and waited for its own launch:
    0.99 ms in place of 0.64 of mlstm, and less beside a peer."""
    done: list[str] = []

    class Event:
        def __init__(self, enable_timing: bool):
            assert enable_timing

        def record(self) -> None:
            done.append("mark")

        def elapsed_time(self, other: object) -> float:
            assert done[-1] == "wait"
            return 100.0

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: done.append("wait"))
    clock = Clock("cpu")
    clock.gpu = True
    calls = {name: lambda name=name: done.append(name) for name in ("ours", "peer")}
    assert paired(calls, clock, 1.0) == {name: [0.1] * 5 for name in calls}
    *_, before, last = [i for i, each in enumerate(done) if each == "wait"]
    rest = [each for each in done[before + 1 : last] if each != "mark"]
    assert rest == ["ours", "peer", "peer", "ours"] * 2 + ["ours", "peer"] and last == len(done) - 1


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
