"""Shares of candidates of an autotuner: together they are all, and none is launched."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest
import torch

triton = pytest.importorskip("triton")
from triton.runtime.autotuner import Autotuner, Config  # noqa: E402
from triton.runtime.errors import OutOfResources  # noqa: E402
from triton.runtime.jit import JITFunction  # noqa: E402

from archc.bench import fill  # noqa: E402
from archc.bench.fill import compile_a_share  # noqa: E402

SIZES = [16, 32, 64, 128, 256]


def body(x: Any, BLOCK: int) -> None:
    """What an autotuner finds inside its kernel."""


def plain(x: Any) -> None:
    """A kernel with no autotuner."""


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Blocks of the kernels that Triton is asked to compile, and "launched" for one to launch."""
    noted: list[Any] = []

    def run(kernel: Any, x: Any, *, grid: Any, warmup: bool, BLOCK: int = 0, **more: Any) -> None:
        noted.append(BLOCK if warmup else "launched")
        if BLOCK == 256:
            raise OutOfResources(2, 1, "shared memory")

    monkeypatch.setattr(Autotuner, "run", Autotuner.run)
    monkeypatch.setattr(JITFunction, "run", run)
    return noted


def tuner(**more: Any) -> Any:
    """A kernel with a candidate for each size."""
    configs = [Config({"BLOCK": size}) for size in SIZES]
    return Autotuner(JITFunction(body), ["x", "BLOCK"], configs, ["x"], None, None, **more)


def test_shares_are_all_candidates(called: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    found, compiled = [], JITFunction.run
    for share in range(3):
        monkeypatch.setattr(JITFunction, "run", compiled)
        compile_a_share(share, 3)
        tuned, alone = tuner(), JITFunction(plain)
        for _ in range(2):
            alone.run(torch.zeros(2), grid=(1,), warmup=False)
            tuned.run(torch.zeros(2), grid=(1,), warmup=False)
        found.append(called.copy())
        called.clear()
    assert found == [[0, 64], [16, 128], [32, 256]]


def test_kernels_that_differ_in_dtype_or_number_are_apart(called: list[Any]) -> None:
    compile_a_share(0, 1)
    alone = JITFunction(plain)
    for given in (torch.zeros(2), torch.ones(3), torch.zeros(2).double(), 4, 5, 4):
        alone.run(given, grid=(1,), warmup=False)
    assert called == [0, 0, 0, 0]


def test_who_compiles_by_itself_gets_what_is_compiled(called: list[Any]) -> None:
    compile_a_share(1, 9)
    for _ in range(2):
        JITFunction(plain).run(torch.zeros(2), grid=(1,), warmup=True)
    assert called == [0, 0]


def test_a_search_that_is_known_is_not_prepared(
    called: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def on_disk(self: Any, key: Any, configs: list[Config], search: Any) -> bool:
        asked.append(key)
        if "torch.float32" not in key:
            search()
        self.cache[key] = configs[3]
        return True

    monkeypatch.setattr(Autotuner, "check_disk_cache", on_disk)
    compile_a_share(0, 1)
    tuned, x = tuner(cache_results=True), torch.zeros(2)
    tuned.run(x, grid=(1,), warmup=False)
    assert (called, asked) == ([128], [(x, "torch.float32")])
    tuned.run(x.double(), grid=(1,), warmup=False)
    assert called == [128, *SIZES]


def test_what_launches_is_made_once_for_a_signature(
    called: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the share that compiles its first kernel; another type of an argument is another one."""
    made = []

    def run(kernel: Any, x: Any, *, BLOCK: int = 0, **more: Any) -> Any:
        return SimpleNamespace(src=kernel.fn.__name__, metadata=x)

    active = SimpleNamespace(launcher_cls=lambda src, metadata: made.append((src, metadata)))
    monkeypatch.setattr(triton.runtime, "driver", SimpleNamespace(active=active))
    for share in range(2):
        monkeypatch.setattr(Autotuner, "run", Autotuner.run)
        monkeypatch.setattr(JITFunction, "run", run)
        compile_a_share(share, 2)
        tuned, alone = tuner(), JITFunction(plain)
        for given in (3, 5, 0.5):
            tuned.run(given, grid=(1,), warmup=False)
        alone.run(7, grid=(1,), warmup=False)
        made.append(share)
    assert made == [("body", 3), ("body", 0.5), 0, ("plain", 7), 1]


@pytest.mark.parametrize("takes", [0.0, 0.012])
def test_what_takes_long_is_timed_once(takes: float, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def call() -> None:
        calls.append(1)
        time.sleep(takes)

    def usual(call: Any, warmup: int, rep: int, quantiles: Any) -> str:
        return f"{warmup} {rep} {len(quantiles)}"

    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(triton.testing, "do_bench", usual)
    found = fill._timed_briefly(call, quantiles=(0.5, 0.2, 0.8))
    assert len(calls) == 2
    if not takes:
        assert found == "3 10 3"
        return
    assert len(found) == 3 and min(found) >= 12
