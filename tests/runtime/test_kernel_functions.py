"""Functions that kernels call, as Python on tensors of torch in place of Triton's."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from archc.runtime import kernels, tiles


def plain(function: Any) -> Callable[..., Any]:
    """What is below the decorator, where there is Triton."""
    return getattr(function, "fn", function)


@pytest.fixture
def tl(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """As much of Triton's language as these need."""
    names = ("arange", "maximum", "reshape", "sum", "where")
    made = SimpleNamespace(**{name: getattr(torch, name) for name in names})
    monkeypatch.setattr(kernels, "tl", made)
    monkeypatch.setattr(tiles, "tl", made)
    return made


STEPS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "tile_linear_step": lambda h, a, b: a * h + b,
    "tile_max_plus_step": lambda h, a, b: torch.maximum(a + h, b),
}


@pytest.mark.parametrize("name", STEPS)
def test_two_steps_as_one(name: str, tl: SimpleNamespace) -> None:
    """A scan joins steps in any grouping: one after the other is the step that is made of both."""
    h, *steps = torch.randn(5, 64, dtype=torch.float64)
    first, second = steps[:2], steps[2:]
    joined = plain(getattr(kernels, name))(*first, *second)
    step = STEPS[name]
    torch.testing.assert_close(step(h, *joined), step(step(h, *first), *second))


def test_columns_of_a_tile(tl: SimpleNamespace) -> None:
    x = torch.randn(3, 12)
    for first in (0, 4, 8):
        part = torch.arange(first, first + 4)
        assert torch.equal(plain(kernels.tile_part)(x, part, 3, 12, 4), x[:, part])


def test_a_row_of_a_table_of_packed_sequences(tl: SimpleNamespace) -> None:
    table = torch.randperm(5 * 7)
    tl.load = table.__getitem__
    for row in range(5):
        found = plain(kernels.packed_row)(0, row)
        assert [*map(int, found)] == table[7 * row : 7 * row + 6].tolist()


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
