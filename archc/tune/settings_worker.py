"""A process that tries settings: `python -m archc.tune.settings_worker check|time|final JOB ...`.

check OUT NAME...     hold candidates against the oracle; a line of JSON for each
time OUT NAME...      the times of every kernel's launches, candidates in turns, as JSON
final OUT TABLE       hold a table of settings against the oracle and time it beside the shipped
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import torch

from archc.bench.clock import Clock, paired
from archc.bench.contenders import Peer, own, refusals
from archc.bench.drawn import draw, load_file
from archc.bench.errors import Oracle
from archc.bench.job import BACKWARD, FORWARD, Job
from archc.bench.worker import calls_of, machine
from archc.runtime.together import constants_of
from archc.runtime.tuned import kernel_digest, launch_class
from archc.tune.candidates import SHIPPED, Candidate, Launch

ROUNDS = 7

Settings = dict[str, int]
Call = Callable[[], object]
Choose = Callable[[Launch], Settings]
"""The settings of a launch in place of those that are shipped for it."""


def generated(job: Job) -> tuple[ModuleType, Peer]:
    """The generated file, and how its memory is called. Its kernels are launched through `Watched`,
    every time: no call is done as one before it was.

    Raises ValueError for a file without kernels that could be tuned.
    """
    module = load_file(Path(job.folder) / "ours.py", "archc_bench_ours")
    names = vars(module)
    if "use_tuned" not in names:
        raise ValueError(f"{job.title} has no kernels for chunks of tokens")
    names["launch_kernel"] = Watched(names["launch_kernel"], kernels_of(module))
    names["likeness"] = lambda *given: (None, [])
    return module, own(getattr(module, job.function), module, job)


def kernels_of(module: ModuleType) -> dict[str, Any]:
    """The kernels that a file launches, by name: its functions for Triton that no other of them
    calls. Those must stay as they are, as Triton looks at the values behind a kernel's names."""
    made = {
        name: each for name, each in vars(module).items()
        if hasattr(each, "fn") and hasattr(each, "__getitem__")
    }  # fmt: skip
    called = {name for each in made.values() for name in each.fn.__code__.co_names}
    return {name: each for name, each in made.items() if name not in called}


class Watched:
    """The function of a file that launches its kernels: with the settings that are tried, and each
    launch of one of the `kernels` is noted with its time."""

    choose: ClassVar[Choose] = staticmethod(lambda launch: {})
    marks: ClassVar[list[tuple[Launch, Any, Any]]] = []
    sources: ClassVar[dict[str, str]] = {}

    def __init__(self, own: Callable[..., Any], kernels: Mapping[str, Any]):
        self.own, self.names = own, {id(made): name for name, made in kernels.items()}

    def __call__(
        self, kernel: Any, programs: int, given: list, counts: list, fixed: dict, options: dict
    ) -> Any:
        """Launch a kernel, as `archc.runtime.launch.launch_kernel` does."""
        constants = constants_of(kernel, len(given) + len(counts), fixed)
        name, kind = self.names[id(kernel)], launch_class((programs,), constants)
        kernel.measured = {kind: Watched.choose((name, kind))}
        with marked() as (start, end):
            made = self.own(kernel, programs, given, counts, fixed, options)
        Watched.marks.append(((name, kind), start, end))
        if name not in Watched.sources:
            Watched.sources[name] = kernel_digest(kernel)
        return made


@contextmanager
def marked() -> Iterator[tuple[Any, Any]]:
    """Two events around what is launched meanwhile."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    yield start, end
    end.record()


@contextmanager
def launched(choose: Choose) -> Iterator[None]:
    """Launch the file's kernels with other settings for a while."""
    Watched.choose = choose
    try:
        yield
    finally:
        Watched.choose = lambda launch: {}


def uniform(name: str) -> Choose:
    """The same candidate for every launch; the shipped settings for `shipped`."""
    settings = {} if name == SHIPPED else Candidate.of(name).settings
    return lambda launch: settings


def wrong(oracle: Oracle, peer: Peer) -> list[str]:
    """The outputs, states and gradients that are further from the oracle than they may be."""
    found = {}
    for what in (FORWARD, BACKWARD):
        found |= oracle.errors(peer, what)
    return [f"{name}: {off:.1e}" for name, off in found.items() if not off <= oracle.limit(name)]


def check(job: Job, names: list[str]) -> Iterator[dict[str, Any]]:
    """A row for each candidate: what is wrong with it, or why it cannot be launched, be it only for
    all tokens; so what is timed later is compiled by then."""
    _, peer = generated(job)
    oracle = Oracle(job)
    oracle.sequence()
    inputs = draw(job, *job.shape[:2])
    for name in names:
        row: dict[str, Any] = {"candidate": name}
        try:
            with launched(uniform(name)):
                row["wrong"] = wrong(oracle, peer)
                for what in (FORWARD, BACKWARD):
                    calls_of(peer, inputs, what)()
        except refusals() as reason:
            row["refused"] = f"{type(reason).__name__}: {reason}"
        yield row


def time_launches(job: Job, names: list[str]) -> dict[str, Any]:
    """The seconds of every launch under every candidate, with the digest of each kernel's text."""
    _, peer = generated(job)
    clock, inputs = Clock(job.device), draw(job, *job.shape[:2])
    calls = [calls_of(peer, inputs, what) for what in (FORWARD, BACKWARD)]
    times: dict[str, dict[str, dict[str, list[float]]]] = {}
    for turn in range(-1, ROUNDS):
        for name in names if turn % 2 else names[::-1]:
            Watched.marks.clear()
            with launched(uniform(name)):
                for call in calls:
                    call()
            clock.wait()
            for (kernel, kind), start, end in Watched.marks if turn >= 0 else ():
                tried = times.setdefault(kernel, {}).setdefault(kind, {})
                tried.setdefault(name, []).append(start.elapsed_time(end) / 1e3)
    return {"times": times, "sources": Watched.sources, "machine": machine(job)}


def final(job: Job, table: Mapping[str, Mapping[str, Settings]]) -> dict[str, Any]:
    """The errors of a table of settings, and how many times as fast it is as the shipped settings:
    both in every round."""
    _, peer = generated(job)
    oracle = Oracle(job)
    oracle.sequence()
    with launched(lambda launch: next(iter(table.get(launch[0], {}).values()), {})):
        found = {"wrong": wrong(oracle, peer)}  # few tokens: settings of any class of the kernel
    inputs, clock = draw(job, *job.shape[:2]), Clock(job.device)
    faster = {}
    for what in (FORWARD, BACKWARD):
        call = calls_of(peer, inputs, what)

        def by(known: Mapping[str, Mapping[str, Settings]], call: Call = call) -> None:
            with launched(lambda launch: known.get(launch[0], {}).get(launch[1], {})):
                call()

        both = {SHIPPED: partial(by, {}), "tuned": partial(by, table)}
        times = paired(both, clock, job.seconds)
        pairs = zip(times[SHIPPED], times["tuned"], strict=True)
        faster[what] = statistics.median(a / b for a, b in pairs)
    return {**found, "faster": faster}


def main(arguments: list[str]) -> None:
    """Do what the arguments say."""
    mode, path, out, *rest = arguments
    job = Job.read(path)
    with Path(out).open("w", encoding="utf-8") as file:
        if mode == "check":
            for row in check(job, rest):
                file.write(json.dumps(row) + "\n")
                file.flush()
        elif mode == "time":
            file.write(json.dumps(time_launches(job, rest)) + "\n")
        else:
            table = json.loads(Path(rest[0]).read_text(encoding="utf-8"))
            file.write(json.dumps(final(job, table)) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
