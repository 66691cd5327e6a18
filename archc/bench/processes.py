"""Which processes run: first calls, a peer's candidates side by side, then one measuring at a time.

Each job has a cache on disk of its own, in its folder. The first calls of the generated file find
it empty, and then filled; peers compile their candidates into it with all cores at once; the
measuring process finds everything compiled and has the machine for itself.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from archc.bench.job import COMPILED, EAGER, OURS, Job

Say = Callable[[str], None]
Row = dict[str, Any]


@dataclass(frozen=True)
class Limits:
    """Seconds: of a first call, of compiling the candidates of all peers, of measuring one job.

    `cores` is how many processes compile at once.
    """

    first: float = 120.0
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
    run = _Processes(folder)
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


def _note_first(outcome: Outcome, kind: str, made: _Done) -> None:
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


@dataclass(frozen=True)
class _Done:
    """How a process ended; `code` is None for one that was stopped after its time."""

    code: int | None
    out: str
    err: str

    def reason(self) -> str:
        if self.code is None:
            return "stopped after its time"
        if self.code < 0:
            return f"its process was ended by signal {-self.code}"
        lines = [line for line in self.err.strip().split("\n") if line.strip()]
        return lines[-1] if lines else f"exit status {self.code}"


class _Processes:
    """Workers of one run; each leaves what it prints in the folder."""

    def __init__(self, folder: Path):
        self.folder, self.count = folder, 0

    def _start(self, mode: str, job: Path, *rest: object) -> tuple[subprocess.Popen[str], Path]:
        self.count += 1
        log = self.folder / f"worker_{self.count}_{mode}"
        command = [sys.executable, "-m", "archc.bench.worker", mode, str(job), *map(str, rest)]
        env = {**os.environ, "TRITON_CACHE_DIR": str(job.with_name("cache"))}
        with log.with_suffix(".out").open("w") as out, log.with_suffix(".err").open("w") as err:
            made = subprocess.Popen(command, env=env, stdout=out, stderr=err, text=True)
        return made, log

    def _wait(
        self, started: Sequence[tuple[subprocess.Popen[str], Path]], seconds: float
    ) -> Iterator[_Done]:
        """How each ended; those that are still there after the seconds are stopped."""
        end = time.monotonic() + seconds
        for process, log in started:
            try:
                code: int | None = process.wait(max(0.1, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                code = None
            out, err = (log.with_suffix(f".{kind}").read_text("utf-8") for kind in ("out", "err"))
            yield _Done(code, out, err)

    def first(self, paths: Sequence[Path], seconds: float) -> Iterator[_Done]:
        """The first calls of every generated file, side by side."""
        started = [self._start("first", path, OURS) for path in paths]
        yield from self._wait(started, seconds)

    def fill(
        self, peers: Sequence[tuple[Job, Path, str]], limits: Limits
    ) -> dict[tuple[Path, str], str]:
        """Compile candidates; the peers that took their process down, and how."""
        shares = max(1, -(-3 * limits.cores // (2 * len(peers))))
        who = [(path, name, share) for share in range(shares) for _, path, name in peers]
        started = [self._start("fill", path, name, share, shares) for path, name, share in who]
        ended = zip(who, self._wait(started, limits.fill), strict=True)
        return {
            (path, name): done.reason()
            for (path, name, _), done in ended
            if done.code is not None and done.code < 0
        }

    def measure(self, path: Path, seconds: float) -> list[Row]:
        """The rows of a job; what was found before a failure is kept."""
        out = path.with_name("rows.jsonl")
        (done,) = self._wait([self._start("measure", path, out)], seconds)
        lines = out.read_text("utf-8").split("\n") if out.exists() else []
        rows = [json.loads(line) for line in lines if line.endswith("}")]
        if done.code != 0:
            rows.append({"broken": f"measuring: {done.reason()}"})
        return rows
