"""Kernels of a function that are compiled side by side, the first time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import FunctionType
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from archc.runtime.optional import triton
from archc.runtime.repeated import noted


class NotCompiled(Exception):
    """The refusal of a compilation, where `here.raised` is set: it stands in for the executor that
    Triton gives it to."""

    here = threading.local()

    @classmethod
    def submit(cls, *given):
        """Nothing is compiled here."""
        raise cls


def staged(fixed: dict, options: dict) -> dict:
    """The constants of a kernel: a walk loads as many chunks ahead as the options say."""
    return {**fixed, "STAGES": options["num_stages"]} if "STAGES" in fixed else fixed


def constants_of(kernel: Any, first: int, fixed: dict) -> dict:
    """The constants of a kernel, in its order: its arguments from the `first` on. Launches of
    several kernels may be told the same."""
    return {name: fixed[name] for name in kernel.arg_names[first:]}


SPILLED = 32
"""Numbers of a thread that may be spilled for one more program that runs at once."""

EASE = 208
"""The most registers of a thread of 8 warps where 4 are tried."""

LOST = 128
"""The most numbers that a thread of these 4 may spill."""

FEWEST = 32
"""The registers of a thread where the assembler has given up, and keeps all in memory."""


def code_that_fits(
    kernel: Any, programs: int, given: list, counts: list, fixed: dict, options: dict
) -> Any:
    """The machine code of a kernel. It loads fewer chunks ahead than the options say where what the
    compiler needs beside them leaves no room in shared memory: only its code tells how much that
    is; and none where the compiler fails, as Triton 3.6 does for sm_100 on some loops. With none
    ahead it is as it is: loading it raises OutOfResources. Fewer registers than a thread may have
    are kept to where no more than SPILLED numbers have no room in them; code with the masks of
    tokens that these do not need is taken where fewer of its numbers are spilled so. What has a
    chunk, and walks over none, has 4 warps in place of 8 where these do (`_of_half`). Where the
    assembler has given up, it is told how many registers there are (`_of_all_registers`)."""
    active = triton.runtime.driver.active
    room = active.utils.get_device_properties(active.get_current_device())["max_shared_mem"]
    while True:
        known = staged(fixed, options)
        stages = options.get("num_stages", 1)
        try:
            made = kernel.warmup(*given, *counts, grid=(programs,), **known, **options)
        except RuntimeError:
            if stages == 1:
                raise
            options = {**options, "num_stages": 1}
            continue
        if "maxnreg" in options:
            made[programs, 1, 1]  # it is loaded, which tells what is spilled
            if made.n_spills > SPILLED:
                options = {name: n for name, n in options.items() if name != "maxnreg"}
                continue
            if made.n_spills and known.get("EVEN"):
                masked = {**known, "EVEN": 0}
                other = kernel.warmup(*given, *counts, grid=(programs,), **masked, **options)
                other[programs, 1, 1]
                made = other if other.n_spills < made.n_spills else made
        if made.metadata.shared <= room or stages == 1:
            every = [*given, *counts]
            made = _of_all_registers(kernel, programs, every, known, made, options, room)
            if options.get("num_warps") == 8 and "CHUNK" in fixed and "STAGES" not in fixed:
                return _of_half(kernel, programs, every, known, made, options, room)
            return made
        options = {**options, "num_stages": stages - 1}


def _of_all_registers(
    kernel: Any, programs: int, given: list, known: dict, made: Any, options: dict, room: int
) -> Any:
    """The machine code of a kernel as it is made, or, where ptxas 12.9 has taken 32 registers of a
    thread for what needs 255 (some products of float32: 6,864 bytes spilled for 1,408), with all
    that a thread may have."""
    if "maxnreg" in options or torch.version.hip is not None or made.metadata.shared > room:
        return made
    made[programs, 1, 1]  # it is loaded, which tells what it has
    if made.n_regs > FEWEST or made.n_spills <= SPILLED:
        return made
    most = min(255, 65_536 // (32 * options.get("num_warps", 4)))
    other = kernel.warmup(*given, grid=(programs,), **known, **options, maxnreg=most)
    other[programs, 1, 1]
    return other if other.n_spills < made.n_spills else made


def _of_half(
    kernel: Any, programs: int, given: list, known: dict, made: Any, options: dict, room: int
) -> Any:
    """The machine code of a kernel by 4 warps, where with 8 it has registers to spare, and with 4
    spills little and has room in shared memory; else as it is made. Twice as many programs run at
    once."""
    made[programs, 1, 1]  # it is loaded, which tells what it has
    if made.n_regs > EASE:
        return made
    options = {**options, "num_warps": 4}
    other = kernel.warmup(*given, grid=(programs,), **known, **options)
    if other.metadata.shared > room:
        return made
    other[programs, 1, 1]
    return other if other.n_spills <= LOST else made


class Launches(TorchDispatchMode):
    """The launches of one call of a function. They wait until their kernels are compiled, side by
    side, and are then done in order; PyTorch computes nothing before them, in case it reads what
    they make."""

    NEW = (torch.ops.aten.empty.memory_format, torch.ops.aten.zeros.default)

    def __init__(self, function: Callable):
        super().__init__()
        active, known = triton.runtime.driver.active, function.__globals__
        self.workers = ThreadPoolExecutor(
            initializer=active.set_current_device, initargs=(active.get_current_device(),)
        )
        self.waiting, self.launch_kernel = [], known["launch_kernel"]
        self.function = FunctionType(function.__code__, {**known, "launch_kernel": self.add})

    def add(
        self, kernel: Any, programs: int, given: list, counts: list, fixed: dict, options: dict
    ) -> None:
        """One more, in place of `launch_kernel`."""
        fixed = constants_of(kernel, len(given) + len(counts), fixed)

        def compiled() -> None:
            made = code_that_fits(kernel, programs, given, counts, fixed, options)
            made[programs, 1, 1]  # it is loaded, too, but not launched

        done = self.workers.submit(compiled) if hasattr(kernel, "warmup") else None
        self.waiting.append((done, (kernel, programs, given, counts, fixed, options)))

    def launch(self) -> None:
        """The calls that wait. Errors of a compiler or of a device are raised here."""
        waiting, self.waiting = self.waiting, []
        for done, launch in waiting:
            if done is not None:
                done.result()
            self.launch_kernel(*launch)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Not asked to: torch would import its compiler for that, which takes two seconds."""
        return False

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        if op not in self.NEW:
            self.launch()
        return op(*args, **(kwargs or {}))

    def __exit__(self, kind, *raised):
        super().__exit__(kind, *raised)
        try:
            if kind is None:
                self.launch()
        finally:
            self.workers.shutdown(cancel_futures=True)


def compiled_together(function: Callable) -> Callable:
    """A function that launches kernels: if one is not compiled yet, all are, side by side."""

    def run(*args):
        NotCompiled.here.raised = True
        try:
            return function(*args)
        except NotCompiled:
            noted(None)  # nothing that is given was written to: it begins again
        finally:
            NotCompiled.here.raised = False
        with Launches(function) as launches:
            return launches.function(*args)

    return run
