"""Which processes run: first calls, a peer's candidates side by side, then one measuring at a time.

Each job has a cache on disk of its own, in its folder. The first calls of the generated file find
it empty, and then filled; peers compile their candidates into it with all cores at once; the
measuring process finds everything compiled and has the machine for itself.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from archc.bench.job import COMPILED, EAGER, OURS, Job
from archc.bench.workers import Done, Workers

Say = Callable[[str], None]
Row = dict[str, Any]


@dataclass(frozen=True)
class Limits:
    """Seconds: of a first call, of compiling the candidates of all peers, of measuring one job.

    `cores` is how many processes compile at once.
    """

    first: float = 240.0
    fill: float = 240.0
    measure: float = 240.0
    cores: int = os.cpu_count() or 1


@dataclass
class Outcome:
    """What was found out about one job: first calls by name (`cold`, `warm`) and what is timed,
    the rows of the measuring process, and why something is missing."""

    job: Job
    first: dict[str, dict[str, float]] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)


def measure(
    jobs: Sequence[Job], folder: Path, say: Say, limits: Limits, first_calls: bool = True
) -> list[Outcome]:
    """Run all that the jobs ask for. A process that fails becomes a row that says so."""
    found = [Outcome(job) for job in jobs]
    paths = [job.write() for job in jobs]
    run = _Processes(folder, "archc.bench.worker")
    if first_calls:
        for kind in ("cold", "warm"):
            say(f"first calls, {kind}")
            for outcome, made in zip(found, run.first(paths, limits.first), strict=True):
                _note_first(outcome, kind, made)
    both = list(zip(jobs, paths, strict=True))
    peers = [(job, path, name) for job, path in both for name in _peers(job)]
    if peers and jobs[0].device.startswith("cuda"):
        say(f"compiling the candidates of {len(peers)} peers")
        lost = run.fill(peers, limits)
        for outcome, path in zip(found, paths, strict=True):
            _without(outcome, path, lost)
    for outcome, path in zip(found, paths, strict=True):
        say(f"measuring {outcome.job.title} at {outcome.job.shape}")
        outcome.rows += run.measure(path, limits.measure)
    return found


def _peers(job: Job) -> list[str]:
    return [name for name in job.against if name not in (EAGER, COMPILED)]


def _note_first(outcome: Outcome, kind: str, made: Done) -> None:
    if made.code == 0:
        outcome.first[kind] = json.loads(made.out.strip().split("\n")[-1])
    else:
        outcome.rows.append({"broken": f"the first call, {kind}: {made.reason()}"})


def _without(outcome: Outcome, path: Path, lost: dict[tuple[Path, str], str]) -> None:
    """Measure without the peers that take their process down."""
    down = {name: reason for (where, name), reason in lost.items() if where == path}
    for name, reason in down.items():
        outcome.rows.append({"remark": f"{name} is left out: {reason}"})
    if down:
        data = json.loads(path.read_text(encoding="utf-8"))
        data["against"] = [name for name in data["against"] if name not in down]
        path.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")


class _Processes(Workers):
    """The workers of one run."""

    def first(self, paths: Sequence[Path], seconds: float) -> Iterator[Done]:
        """The first calls of every generated file, side by side."""
        started = [self.start("first", path, OURS) for path in paths]
        yield from self.wait(started, seconds)

    def fill(
        self, peers: Sequence[tuple[Job, Path, str]], limits: Limits
    ) -> dict[tuple[Path, str], str]:
        """Compile candidates; the peers that took their process down, and how."""
        shares = max(1, -(-3 * limits.cores // (2 * len(peers))))
        who = [(path, name, share) for share in range(shares) for _, path, name in peers]
        started = [self.start("fill", path, name, share, shares) for path, name, share in who]
        ended = zip(who, self.wait(started, limits.fill), strict=True)
        return {
            (path, name): done.reason()
            for (path, name, _), done in ended
            if done.code is not None and done.code < 0
        }

    def measure(self, path: Path, seconds: float) -> list[Row]:
        """The rows of a job; what was found before a failure is kept."""
        out = path.with_name("rows.jsonl")
        (done,) = self.wait([self.start("measure", path, out)], seconds)
        lines = out.read_text("utf-8").split("\n") if out.exists() else []
        rows = [json.loads(line) for line in lines if line.endswith("}")]
        if done.code != 0:
            rows.append({"broken": f"measuring: {done.reason()}"})
        return rows
