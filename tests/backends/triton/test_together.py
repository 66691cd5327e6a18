"""Kernels that are compiled side by side at the first call: on a machine without a GPU, with a
driver that loads nothing and notes what is launched."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler.errors import CompilationError
from triton.runtime.errors import OutOfResources

from archc.runtime import together as compiled
from archc.runtime.launch import launch_kernel
from archc.runtime.together import Launches, compiled_together

NUMBERS: dict[str, int] = {}
OPTIONS = {"num_warps": 1}


@triton.jit
def first(x_p, count, WIDE: tl.constexpr):
    """The first of two."""
    tl.static_assert(WIDE < 100)
    tl.store(x_p + tl.arange(0, WIDE), count)


@triton.jit
def second(x_p, count, WIDE: tl.constexpr):
    """The second."""
    tl.store(x_p + tl.arange(0, WIDE), count + 1)


@compiled_together
def both(x: Tensor, wide: int, odd: int) -> Tensor:
    """A function that launches both of them."""
    made = torch.empty(4, dtype=torch.int32)
    launch_kernel(first, 5, [x], [odd], {"WIDE": wide}, OPTIONS)
    launch_kernel(second, 5, [made], [odd], {"WIDE": 8}, OPTIONS)
    return made


class Driver:
    """In place of a GPU: who made a kernel ready, and in what order kernels were launched."""

    def __init__(self) -> None:
        self.ready: dict[str, threading.Thread] = {}
        self.launched: list[str] = []
        self.most, self.devices = 1024, set[threading.Thread]()
        self.utils = SimpleNamespace(load_binary=self.load, get_device_properties=self.properties)
        self.get_current_target = lambda: GPUTarget("cuda", 90, 32)
        self.get_current_device = self.get_current_stream = lambda *given: 0

    def set_current_device(self, device: int) -> None:
        """Threads begin on a device of their own."""
        self.devices.add(threading.current_thread())

    def properties(self, device: int) -> dict[str, int]:
        """What a device has."""
        return {"max_shared_mem": 232_448}

    def load(self, name: str, *given: Any) -> tuple[int, ...]:
        """Machine code arrives at the device."""
        self.ready[name] = threading.current_thread()
        return 1, 1, 16, 0, self.most

    def launcher_cls(self, source: Any, metadata: Any) -> Any:
        """What launches a kernel."""
        return lambda *given: self.launched.append(source.name)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Machine code on disk, which is read by each test anew."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch, cache: Path) -> Iterator[Driver]:
    """Without a GPU, nothing compiled."""
    made, before = Driver(), triton.runtime.driver._active
    monkeypatch.setenv("TRITON_CACHE_DIR", str(cache))
    triton.runtime.driver.set_active(made)
    for kernel in (first, second):
        kernel.device_caches.clear()
        vars(kernel).pop("known_launches", None)
    yield made
    triton.runtime.driver._active = before


def test_side_by_side_once(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    x, here = torch.empty(64, dtype=torch.int32), threading.current_thread()
    both(x, 8, 33)
    assert driver.launched == ["first", "second"]
    assert set(driver.ready) == {"first", "second"}
    assert here not in driver.ready.values() and driver.devices >= {*driver.ready.values()}
    monkeypatch.delattr(compiled, "Launches")
    both(x, 8, 33)  # by what is known
    both(x, 8, 35)  # by what Triton has
    assert driver.launched == ["first", "second"] * 3


def test_one_that_is_not_compiled_is_launched_in_its_place(driver: Driver) -> None:
    x = torch.empty(64, dtype=torch.int32)
    launch_kernel(first, 5, [x], [33], {"WIDE": 8}, OPTIONS)
    assert driver.ready["first"] is threading.current_thread() is not driver.ready.get("second")
    both(x, 8, 33)
    assert driver.ready["second"] is not threading.current_thread()
    assert driver.launched == ["first", "first", "first", "second"]  # the second call began twice


def test_errors_are_those_of_the_compiler_and_the_device(driver: Driver) -> None:
    x = torch.empty(64, dtype=torch.int32)
    for _ in range(2):
        with pytest.raises(CompilationError, match="static_assert"):
            both(x, 128, 33)
    assert driver.launched == []
    driver.most = 16
    for _ in range(2):
        with pytest.raises(OutOfResources, match="threads"):
            both(x, 8, 33)
    assert driver.launched == []


class Waits:
    """In place of a kernel: it is compiled only while another is."""

    metadata, n_regs = SimpleNamespace(shared=0), 255
    arg_names = ("x_p",)

    def __init__(self, name: str, log: list[str], meeting: threading.Barrier):
        self.name, self.log, self.meeting = name, log, meeting

    def warmup(self, *given: Any, **named: Any) -> Waits:
        """Compiled, and loaded when it is asked for."""
        self.meeting.wait(timeout=60)
        return self

    def __getitem__(self, grid: tuple) -> Any:
        return lambda *given, **named: self.log.append(self.name)


def three_of(kernels: list[Waits], log: list[str]) -> list[int]:
    """How many were launched before PyTorch computed something, and after."""
    made = torch.empty(2)
    for kernel in kernels[:2]:
        launch_kernel(kernel, 5, [made], [], {}, {})
    found = [len(log)]
    total = made.sum()
    launch_kernel(kernels[2], 5, [total], [], {}, {})
    return [*found, len(log)]


def test_pytorch_reads_nothing_before_it_is_made(driver: Driver) -> None:
    """Two that are only compiled at once; what PyTorch does stands between them and a third."""
    log, two, alone = list[str](), threading.Barrier(2), threading.Barrier(1)
    kernels = [Waits("one", log, two), Waits("two", log, two), Waits("three", log, alone)]
    with Launches(three_of) as launches:
        assert launches.function(kernels, log) == [0, 2]
    assert log == ["one", "two", "three"]


def made_of(shared: int) -> MagicMock:
    """Machine code that needs so many bytes on chip, and spills nothing."""
    made = MagicMock(n_regs=96, n_spills=0)
    made.metadata.shared = shared
    return made


class Large:
    """In place of a kernel: it takes 80,000 bytes for each chunk that it loads ahead."""

    def warmup(self, *given: Any, num_stages: int, **named: Any) -> SimpleNamespace:
        """Compiled."""
        return made_of(80_000 * num_stages)


def test_as_many_chunks_ahead_as_there_is_room_for(driver: Driver) -> None:
    made = compiled.code_that_fits(Large(), 5, [], [], {}, {"num_stages": 3})
    assert made.metadata.shared == 160_000


@dataclass
class Fails:
    """In place of a kernel: its compiler fails on loops of several stages, or on all."""

    most: int

    def warmup(self, *given: Any, num_stages: int, **named: Any) -> Any:
        """Compiled, unless a pass fails."""
        if num_stages > self.most:
            raise RuntimeError("PassManager::run failed")
        return made_of(num_stages)


def test_none_ahead_where_the_compiler_fails(driver: Driver) -> None:
    """An error with one stage is an error."""
    made = compiled.code_that_fits(Fails(1), 5, [], [], {}, {"num_stages": 3})
    assert made.metadata.shared == 1
    with pytest.raises(RuntimeError, match="PassManager"):
        compiled.code_that_fits(Fails(0), 5, [], [], {}, {"num_stages": 3})


@dataclass
class Crowded:
    """In place of a kernel: some numbers of a thread are spilled if its registers are limited, some
    also with masks of tokens that are not needed."""

    spilled: int
    masked: int = 0

    def warmup(self, *given: Any, maxnreg: int = 255, EVEN: int = 1, **named: Any) -> Any:
        """Compiled, and loaded when it is asked for."""
        spilled = self.spilled if EVEN else self.masked
        made = MagicMock(
            n_regs=255, n_spills=spilled if maxnreg < 255 else 0, limit=maxnreg, even=EVEN
        )
        made.metadata.shared = 0
        return made


@pytest.mark.parametrize(("spilled", "limit"), [(20, 168), (260, 255)])
def test_fewer_registers_are_kept_to_where_little_is_spilled(
    driver: Driver, spilled: int, limit: int
) -> None:
    options = {"num_stages": 1, "maxnreg": 168}
    made = compiled.code_that_fits(Crowded(spilled), 5, [], [], {}, options)
    assert made.limit == limit


@pytest.mark.parametrize(
    ("spilled", "masked", "given", "even"),
    [(14, 0, 1, 0), (14, 20, 1, 1), (0, 0, 1, 1), (14, 0, 0, 0), (260, 0, 1, 1)],
)
def test_masks_are_kept_where_fewer_numbers_are_spilled_with_them(
    driver: Driver, spilled: int, masked: int, given: int, even: int
) -> None:
    options = {"num_stages": 1, "maxnreg": 168}
    kernel = Crowded(spilled, masked)
    made = compiled.code_that_fits(kernel, 5, [], [], {"EVEN": given}, options)
    assert made.even == even


@pytest.mark.parametrize(
    ("fixed", "registers", "spilled", "shared", "warps"),
    [({"CHUNK": 64}, 202, 108, 0, 4), ({"CHUNK": 64}, 202, 300, 0, 8),
     ({"CHUNK": 64}, 232, 0, 0, 8), ({"CHUNK": 64}, 202, 108, 1 << 30, 8),
     ({"CHUNK": 64, "STAGES": 3}, 92, 0, 0, 8), ({}, 92, 0, 0, 8)],
)  # fmt: skip
def test_half_the_warps_where_there_are_registers_to_spare(
    driver: Driver, fixed: dict[str, int], registers: int, spilled: int, shared: int, warps: int
) -> None:
    """Of kernels of a chunk that do not walk; `shared`: the bytes on chip of the fewer warps."""

    def warmup(*given: Any, num_warps: int, **named: Any) -> Any:
        made = MagicMock(n_regs=registers, n_spills=spilled, warps=num_warps)
        made.metadata.shared = shared if num_warps == 4 else 0
        return made

    options = {"num_stages": 1, "num_warps": 8}
    made = compiled.code_that_fits(MagicMock(warmup=warmup), 5, [], [], fixed, options)
    assert made.warps == warps


@pytest.mark.parametrize(
    ("registers", "spilled", "warps", "limit"),
    [(32, 6864, 4, 255), (32, 6864, 16, 128), (32, 0, 4, None), (255, 6864, 4, None)],
)
def test_registers_are_said_where_the_assembler_takes_almost_none(
    driver: Driver, registers: int, spilled: int, warps: int, limit: int | None
) -> None:
    def warmup(*given: Any, maxnreg: int | None = None, **named: Any) -> Any:
        made = MagicMock(n_regs=maxnreg or registers, limit=maxnreg)
        made.n_spills, made.metadata.shared = 1408 if maxnreg else spilled, 0
        return made

    options = {"num_stages": 1, "num_warps": warps}
    made = compiled.code_that_fits(MagicMock(warmup=warmup), 5, [], [], {}, options)
    assert made.limit == limit


def test_the_compiler_of_torch_is_not_imported() -> None:
    """Torch imports it for modes that do not say otherwise: two seconds of a first call."""
    assert vars(Launches)["__torch_dispatch__"].__code__.co_name == "__torch_dispatch__"
