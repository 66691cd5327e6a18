"""The search: candidates are compiled and held against the oracle side by side, and those that are
right are timed in one process that has the device for itself."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from archc.bench.job import Job
from archc.bench.workers import Done, Workers
from archc.tune.candidates import SHIPPED, Candidate, Launch, chosen, every, stand

Say = Callable[[str], None]

WORKER = "archc.tune.settings_worker"


class SearchFailed(RuntimeError):
    """A process of the search that ended without a result, or shipped settings that are wrong."""


@dataclass
class Found:
    """The result of one job: the settings that are better than the shipped ones; candidates that
    are left out, and why; times by launch and candidate; how many times as fast all is."""

    job: Job
    settings: dict[Launch, Candidate] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    times: dict[Launch, dict[str, list[float]]] = field(default_factory=dict)
    faster: dict[str, float] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)
    machine: dict[str, str] = field(default_factory=dict)


def search(
    job: Job, say: Say, seconds: float, candidates: Sequence[Candidate] | None = None,
    cores: int | None = None,
) -> Found:  # fmt: skip
    """The best settings for the kernels of a job, within about `seconds` for each of its parts.

    Raises SearchFailed where there is nothing to rely on.
    """
    found = Found(job)
    right = checked(found, say, seconds, candidates or every(), cores or os.cpu_count() or 1)
    timed(found, right, say, seconds)
    return found


def checked(
    found: Found, say: Say, seconds: float, candidates: Sequence[Candidate], cores: int
) -> list[str]:
    """The candidates whose numbers are right, compiled side by side; `found` has what is left out.
    Raises SearchFailed if the shipped settings are not among them."""
    job, workers = found.job, Workers(Path(found.job.folder), WORKER)
    names = [SHIPPED, *(each.name for each in candidates)]
    say(f"{job.title}: {len(names) - 1} candidates compiled and held against the oracle")
    few = replace(job, shape=(1, *job.shape[1:])).write("few.json")  # the oracle takes room
    right = _checked(workers, few, names, found, seconds, cores)
    if SHIPPED in found.left_out or SHIPPED not in right:
        reason = found.left_out.get(SHIPPED, "not done in time")
        raise SearchFailed(f"{job.title}: the shipped settings: {reason}")
    return right


def timed(found: Found, right: Sequence[str], say: Say, seconds: float) -> None:
    """Time those that are right, on a quiet machine, and choose. Raises SearchFailed as `search`
    does."""
    job, workers = found.job, Workers(Path(found.job.folder), WORKER)
    path = job.write()
    say(f"{job.title}: {len(right) - 1} candidates are right, and timed")
    (row,) = _rows(workers, path, "time", right, seconds)
    found.sources, found.machine = row["sources"], row["machine"]
    for kernel, kinds in row["times"].items():
        for kind, tried in kinds.items():
            found.times[kernel, kind] = tried
    found.settings = chosen(found.times, right)
    if found.settings:
        say(f"{job.title}: {len(found.settings)} launches are faster otherwise; all together")
        _together(workers, path, found, say, seconds)


def _checked(
    workers: Workers, path: Path, names: Sequence[str], found: Found, seconds: float, cores: int
) -> list[str]:
    """The candidates that agree with the oracle; the others are noted with their reason."""
    shares = min(cores, len(names))
    outs = [path.with_name(f"check_{share}.jsonl") for share in range(shares)]
    started = [
        workers.start("check", path, out, *names[share::shares], alone=False)
        for share, out in enumerate(outs)
    ]
    ended = list(workers.wait(started, seconds))
    rows = {row["candidate"]: row for out in outs for row in _read(out)}
    for share, done in enumerate(ended):
        for name in names[share::shares]:
            if name not in rows:
                found.left_out[name] = done.reason()
    for name, row in rows.items():
        if "refused" in row:
            found.left_out[name] = row["refused"]
        elif row["wrong"]:
            found.left_out[name] = f"wrong: {', '.join(row['wrong'])}"
    return [name for name in names if name not in found.left_out]


def _together(workers: Workers, path: Path, found: Found, say: Say, seconds: float) -> None:
    """Hold all chosen settings against the oracle at once, and against the shipped ones in time;
    settings that are not faster together are dropped."""
    table: dict[str, dict[str, Any]] = {}
    for (kernel, kind), candidate in found.settings.items():
        table.setdefault(kernel, {})[kind] = candidate.settings
    file = path.with_name("table.json")
    file.write_text(json.dumps(table), encoding="utf-8")
    (row,) = _rows(workers, path, "final", [str(file)], seconds)
    if row["wrong"]:
        raise SearchFailed(f"{found.job.title}: together wrong: {', '.join(row['wrong'])}")
    found.faster = row["faster"]
    if not stand(found.faster.values()):
        told = ", ".join(f"{what} {times:.3f}" for what, times in found.faster.items())
        say(f"{found.job.title}: not faster together ({told}): the shipped settings stay")
        found.settings = {}


def _rows(
    workers: Workers, path: Path, mode: str, rest: Sequence[str], seconds: float
) -> list[dict[str, Any]]:
    out = path.with_name(f"{mode}.jsonl")
    done: Done
    (done,) = workers.wait([workers.start(mode, path, out, *rest)], seconds)
    rows = _read(out)
    if done.code != 0 or not rows:
        raise SearchFailed(f"{mode}: {done.reason()}")
    return rows


def _read(out: Path) -> list[dict[str, Any]]:
    lines = out.read_text("utf-8").split("\n") if out.exists() else []
    return [json.loads(line) for line in lines if line.endswith("}")]
