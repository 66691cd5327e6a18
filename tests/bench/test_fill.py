"""Shares of an autotuner's candidates: together they are all, and each process runs one of its
own."""

from __future__ import annotations

from typing import Any

import pytest
import torch

triton = pytest.importorskip("triton")
from triton.runtime.autotuner import Autotuner, Config  # noqa: E402
from triton.runtime.errors import OutOfResources  # noqa: E402

from archc.bench.fill import compile_a_share  # noqa: E402

SIZES = [16, 32, 64, 128, 256]


def body(x: Any, BLOCK: int) -> None:
    """What an autotuner finds inside its kernel."""


class Recorder:
    """A kernel that notes how it is called; sizes in `large` do not fit."""

    def __init__(self, large: tuple[int, ...]):
        self.large, self.fn = large, body
        self.compiled: list[int] = []
        self.launched: list[int] = []

    def run(self, x: Any, *, BLOCK: int, warmup: bool, **more: Any) -> None:
        if warmup:
            self.compiled.append(BLOCK)
        elif BLOCK in self.large:
            raise OutOfResources(2, 1, "shared memory")
        else:
            self.launched.append(BLOCK)


def recorded(
    monkeypatch: pytest.MonkeyPatch, share: int, shares: int, large: tuple[int, ...] = ()
) -> Recorder:
    """A process that has share `share`, and calls the kernel twice."""
    kernel = Recorder(large)
    tuned = Autotuner(kernel, ["x"], [Config({"BLOCK": size}) for size in SIZES], ["x"], None, None)
    monkeypatch.setattr(Autotuner, "run", Autotuner.run)
    compile_a_share(share, shares)
    for _ in range(2):
        tuned.run(torch.zeros(2), grid=(1,), warmup=False)
    return kernel


def test_shares_are_all_candidates(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = [recorded(monkeypatch, share, 2) for share in range(2)]
    assert [kernel.compiled for kernel in kernels] == [[64, 256], [128]]
    assert [kernel.launched for kernel in kernels] == [[16, 16], [32, 32]]


def test_what_cannot_be_launched_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = recorded(monkeypatch, 2, 5, large=(64, 16))
    assert kernel.launched == [32, 32]
    with pytest.raises(RuntimeError, match="no candidate"):
        recorded(monkeypatch, 0, 1, large=tuple(SIZES))


def test_more_shares_than_candidates(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = recorded(monkeypatch, 7, 9)
    assert (kernel.compiled, kernel.launched) == ([], [64, 64])


def test_a_search_that_is_known_is_not_prepared(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, asked = Recorder(()), []

    def on_disk(self: Any, key: Any, configs: list[Config], search: Any) -> bool:
        asked.append(key)
        if "torch.float32" not in key:
            search()
        self.cache[key] = configs[3]
        return True

    monkeypatch.setattr(Autotuner, "run", Autotuner.run)
    monkeypatch.setattr(Autotuner, "check_disk_cache", on_disk)
    compile_a_share(0, 1)
    configs = [Config({"BLOCK": size}) for size in SIZES]
    tuned = Autotuner(kernel, ["x"], configs, ["x"], None, None, cache_results=True)
    x = torch.zeros(2)
    tuned.run(x, grid=(1,), warmup=False)
    assert (kernel.compiled, kernel.launched, asked) == ([], [128], [(x, "torch.float32")])
    tuned.run(x.double(), grid=(1,), warmup=False)
    assert (kernel.compiled, kernel.launched) == (SIZES[1:], [128, 16])
