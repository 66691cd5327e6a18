"""The launch of a kernel whose machine code is known."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import triton
from triton import language as tl

from archc.runtime import launch


def body(table, out, n, SIZE: tl.constexpr):
    """A kernel that is never run here."""


def blocked(out, n, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    """Another, of which the launches of a function are told more than it takes."""


class Code:
    """Machine code that only counts its launches."""

    def __init__(self) -> None:
        self.launched: list[tuple[int, tuple[Any, ...]]] = []

    def __getitem__(self, grid: tuple[int, int, int]) -> Any:
        return lambda *given: self.launched.append((grid[0], given))


def test_a_table_that_is_not_given_may_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Borders of packed sequences are the first argument of a region's kernel, and optional."""
    made: list[Code] = []

    def compiled(*_: Any) -> Code:
        made.append(Code())
        return made[-1]

    monkeypatch.setattr(launch, "code_that_fits", compiled)
    kernel: Any = triton.JITFunction(body)
    out, table = torch.zeros(4), torch.zeros(2, dtype=torch.int32)
    for _ in range(2):
        launch.launch_kernel(kernel, 3, [None, out], [5], {"SIZE": 4}, {"num_warps": 1})
    launch.launch_kernel(kernel, 3, [table, out], [5], {"SIZE": 4}, {"num_warps": 1})
    plain, packed = made  # one machine code each
    # what is launched again is not looked up: Triton is given where it is
    assert plain.launched == [(3, (None, out, 5, 4)), (3, (None, out.data_ptr(), 5, 4))]
    assert packed.launched == [(3, (table, out, 5, 4))]


def test_constants_of_several_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Machine code has its numbers by their places: a kernel takes its own, in its order."""
    made = Code()
    monkeypatch.setattr(launch, "code_that_fits", lambda *_: made)
    kernel: Any = triton.JITFunction(blocked)
    fixed, out = {"CHUNK": 64, "SIZE": 4}, torch.zeros(4)
    launch.launch_kernel(kernel, 3, [out], [5], fixed | {"BLOCK": 8}, {"num_warps": 1})
    # as many as it takes, and in another order
    launch.launch_kernel(kernel, 3, [out], [5], {"BLOCK": 8, "SIZE": 4}, {"num_warps": 1})
    launch.launch_kernel(kernel, 3, [out], [5], {"BLOCK": 4, "SIZE": 8}, {"num_warps": 1})
    first, again, other = (given[2:] for _, given in made.launched)
    assert first == again == (4, 8) and other == (8, 4)
    with pytest.raises(KeyError, match="BLOCK"):
        launch.launch_kernel(kernel, 3, [out], [5], fixed, {"num_warps": 1})
