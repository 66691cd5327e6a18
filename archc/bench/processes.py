"""Which processes run: first calls, a peer's candidates side by side, then one measuring at a time.

Each job has a cache on disk of its own, in its folder. The first calls of the generated file find
it empty, and then filled; peers compile their candidates into it with all cores at once; the
measuring process finds everything compiled and has the machine for itself.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
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
    """The outcome of one job: first calls by name (`cold`, `warm`) and their times, the rows of the
    measuring process, and the reason for each that is missing."""

    job: Job
    first: dict[str, dict[str, float]] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)


def measure(
    jobs: Sequence[Job], folder: Path, say: Say, limits: Limits, first_calls: bool = True
) -> Iterator[Outcome]:
    """Run all that the jobs ask for; the outcome of each as it comes, in their order. A process
    that fails becomes a row that says so."""
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
        for outcome, remark in run.fill(dict(zip(paths, found, strict=True)), peers, limits):
            outcome.rows.append({"remark": remark})
    for outcome, path in zip(found, paths, strict=True):
        say(f"measuring {outcome.job.title} at {outcome.job.shape}")
        outcome.rows += run.measure(path, outcome.job, limits.measure)
        yield outcome


def _peers(job: Job) -> list[str]:
    return [name for name in job.against if name not in (EAGER, COMPILED)]


def _note_first(outcome: Outcome, kind: str, made: Done) -> None:
    if made.code == 0:
        outcome.first[kind] = json.loads(made.out.strip().split("\n")[-1])
    else:
        outcome.rows.append({"broken": f"the first call, {kind}: {made.reason()}"})


class _Processes(Workers):
    """The workers of one run."""

    def first(self, paths: Sequence[Path], seconds: float) -> Iterator[Done]:
        """The first calls of every generated file, side by side."""
        started = [self.start("first", path, OURS) for path in paths]
        yield from self.wait(started, seconds)

    def fill(
        self, found: Mapping[Path, Outcome], peers: Sequence[tuple[Job, Path, str]], limits: Limits
    ) -> Iterator[tuple[Outcome, str]]:
        """Compile candidates; remarks on processes that failed, once for each peer. What they leave
        to be done is done by the peer itself when it is measured."""
        shares = -(-limits.cores // len(peers))
        who = [(path, name, share) for share in range(shares) for _, path, name in peers]
        started = [
            self.start("fill", path, name, share, shares, alone=False) for path, name, share in who
        ]
        told = set()
        for (path, name, _), done in zip(who, self.wait(started, limits.fill), strict=True):
            if done.code != 0 and (path, name) not in told:
                told.add((path, name))
                yield found[path], f"{name}, compiling candidates ahead: {done.reason()}"

    def measure(self, path: Path, job: Job, seconds: float) -> list[Row]:
        """The rows of a job; what was found before a failure is kept. If the process was taken down
        while it measured peers, what was missing of ours is measured without them."""
        done, rows = self._measured(path, seconds)
        if done.code is not None and done.code < 0 and job.against:
            names = ", ".join(job.against)
            alone = replace(job, against=()).write()
            whole = {row["what"] for row in rows if "seconds" in row}
            rows = [row for row in rows if "what" not in row or row["what"] in whole]
            rows.append({"remark": f"the rest is measured without {names}: {done.reason()}"})
            done, more = self._measured(alone, seconds)
            rows += [row for row in more if row.get("what") not in whole]
        if done.code != 0:
            rows.append({"broken": f"measuring: {done.reason()}"})
        return rows

    def _measured(self, path: Path, seconds: float) -> tuple[Done, list[Row]]:
        out = path.with_name("rows.jsonl")
        out.unlink(missing_ok=True)
        (done,) = self.wait([self.start("measure", path, out)], seconds)
        lines = out.read_text("utf-8").split("\n") if out.exists() else []
        return done, [json.loads(line) for line in lines if line.endswith("}")]
