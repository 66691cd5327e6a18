"""Functions that kernels call, as Python on tensors of torch in place of Triton's."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from archc.runtime import tiles


def plain(function: Any) -> Callable[..., Any]:
    """What is below the decorator, where there is Triton."""
    return getattr(function, "fn", function)


@pytest.fixture
def tl(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """As much of Triton's language as these need."""
    names = ("arange", "maximum", "reshape", "sum", "where")
    made = SimpleNamespace(**{name: getattr(torch, name) for name in names})
    monkeypatch.setattr(tiles, "tl", made)
    return made


def test_no_program_goes_on_before_all_have_come(tl: SimpleNamespace) -> None:
    """Four programs as threads, three times."""
    counter, lock, come = {"counter": 0}, threading.Lock(), list[int]()

    def atomic_add(pointer: str, value: int, **how: str) -> int:
        with lock:
            before = counter[pointer]
            counter[pointer] += value
            return before

    tl.atomic_add, tl.debug_barrier, tl.num_programs = atomic_add, lambda: None, lambda axis: 4
    seen = list[list[int]]()

    def program() -> None:
        for turn in range(3):
            come.append(turn)
            plain(tiles.grid_barrier)("counter", turn)
            seen.append([turn, come.count(turn)])

    threads = [threading.Thread(target=program, daemon=True) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert sorted(seen) == [[turn, 4] for turn in range(3) for _ in range(4)]
