"""Time as a user sees it: paired rounds, each contender once in each, so that a machine that is
slow for a while slows all of them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import torch

Call = Callable[[], object]
Pending = Callable[[], float]
"""The seconds of a call that was made, once it is done."""

LEAST, MOST = 5, 60
"""Rounds."""

CACHES = 256 << 20
"""Bytes that are read before each call on a GPU, so that none finds its inputs in a cache. A call
would wait for bytes that were written until the cache has put them into memory: 4 us on an H200."""


class Clock:
    """Takes the time of calls on a device: `cuda` or `cpu`."""

    def __init__(self, device: str):
        self.gpu = torch.device(device).type == "cuda"
        self.scratch = torch.zeros(CACHES // 8 if self.gpu else 0, dtype=torch.int64, device=device)

    def wait(self) -> None:
        """Until the device has nothing left to do."""
        if self.gpu:
            torch.cuda.synchronize()

    def begin(self, call: Call) -> Pending:
        """Make a call; its seconds are known once the device has done it. A GPU is not waited for:
        it has work when a call begins, as in training, where the next call is launched meanwhile.
        What a host launches more slowly than a GPU works is found all the same."""
        if not self.gpu:
            return partial(float, _seconds(call))
        self.scratch.sum()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        call()
        end.record()
        return lambda: start.elapsed_time(end) / 1e3

    def peak(self, call: Call) -> float | None:
        """MiB that a call takes at most beside what is there before; None where nobody counts."""
        if not self.gpu:
            return None
        return peak(call)


def peak(call: Call) -> float:
    """MiB on the GPU that a call takes at most beside what is there before."""
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / 2**20


def _seconds(call: Call) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def paired(calls: Mapping[str, Call], clock: Clock, seconds: float) -> dict[str, list[float]]:
    """The times of each call in every round, about `seconds` in all; who is first takes turns."""
    names = list(calls)
    once = 0.0
    for _ in range(3):  # the last counts
        tried = [clock.begin(calls[name]) for name in names]
        clock.wait()
        once = sum(each() for each in tried)
    found: dict[str, list[Pending]] = {name: [] for name in names}
    for turn in range(max(LEAST, min(MOST, int(seconds / max(once, 1e-9))))):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            found[name].append(clock.begin(calls[name]))
    clock.wait()
    return {name: [each() for each in row] for name, row in found.items()}


@dataclass(frozen=True)
class Ceilings:
    """Measured limits of the device: bytes a second of a copy, operations a second of a product."""

    bytes: float
    flops: float


def ceilings(clock: Clock, dtype: torch.dtype) -> Ceilings:
    """Measured here, as nothing may be faster than what this machine does now."""
    device = clock.scratch.device
    size, rows = (1 << 30, 8192) if clock.gpu else (1 << 26, 512)
    source = torch.empty(size, dtype=torch.int8, device=device)
    target = torch.empty_like(source)
    a = torch.randn(rows, rows, device=device, dtype=dtype)
    calls = {"copy": lambda: target.copy_(source), "product": lambda: a @ a}
    found = paired(calls, clock, 0.2)
    copied, product = (statistics.median(found[name]) for name in ("copy", "product"))
    return Ceilings(2 * size / copied, 2 * rows**3 / product)


def captured(call: Call, settle: Call = lambda: None, mode: str = "global") -> Call:
    """The call as a CUDA graph, which is launched as one, and holds the tensors of the call;
    `settle` is called just before it is recorded, `mode` is torch's `capture_error_mode`. Raises
    RuntimeError if it cannot be."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(side)
    settle()
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph, capture_error_mode=mode):
            call()
    except torch.OutOfMemoryError as error:
        free, whole = (n >> 20 for n in torch.cuda.mem_get_info())
        room = f"a graph holds all memory of a call, and {free} of {whole} MiB are free"
        raise RuntimeError(f"no room for a CUDA graph: {room}: {error}") from error
    return partial(_replay, graph, call)


def _replay(graph: torch.cuda.CUDAGraph, call: Call) -> None:
    """Launch a graph; as long as it may be, `call` keeps what the graph reads and writes."""
    graph.replay()
