"""Which processes run: first calls, what compiles, side by side, then one measuring at a time.

The first calls of generated files find each a cache on disk of its own, empty and then filled.
Without them all jobs share one cache: `prepare` fills it with the kernels of ours and with the
candidates of peers, all cores at once, for a run that comes later and finds everything compiled.
The measuring process has the machine for itself, but for the next one, which loads what it needs.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from archc.bench.folders import own
from archc.bench.job import (
    BACKWARD,
    COMPILED,
    EAGER,
    FORWARD,
    LAYER,
    LAYER_BACKWARD,
    OURS,
    Job,
)  # fmt: skip
from archc.bench.workers import Done, Started, Workers

Say = Callable[[str], None]
Row = dict[str, Any]

SHARES = 4
"""Processes among which a peer's candidates are divided at least, where there are cores."""

WAVE = 24
"""Rows whose own kernels are compiled before any of their peers': those of one call of `prepare`
that is cut off have ours at least."""

LATE = "late_compile"
"""The file that says how many seconds torch.compile had for a job and did not do with."""

ROWS = "rows.jsonl"
"""The file that a measuring process writes its rows into, beside its job."""


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
    with own(folder) as place:
        run = _Processes(place, "archc.bench.worker", None if first_calls else folder / "cache")
        yield from _measured(jobs, run, say, limits, first_calls)


def _measured(
    jobs: Sequence[Job], run: _Processes, say: Say, limits: Limits, first_calls: bool
) -> Iterator[Outcome]:
    found = [Outcome(job) for job in jobs]
    paths = [job.write(run=run.folder) for job in jobs]
    if first_calls:
        for kind in ("cold", "warm"):
            say(f"first calls, {kind}")
            for outcome, made in zip(found, run.first(paths, limits.first), strict=True):
                _note_first(outcome, kind, made)
    peers = [(j, path, n) for j, path in zip(jobs, paths, strict=True) for n in _peers(j, limits)]
    if not first_calls:
        peers = [each for each in peers if not _mark(each[0], each[2]).exists()]
    if peers and jobs[0].device.startswith("cuda"):
        say(f"compiling the candidates of {len(peers)} peers")
        for outcome, remark in run.fill(found, peers, limits):
            outcome.rows.append({"remark": remark})
    for outcome in found:
        outcome.rows += _late_rows(outcome.job)
    paths = [_in_time(job).write(run=run.folder) for job in jobs]
    held = [run.hold(path) for path in paths[:1]]
    try:
        for number, (outcome, path) in enumerate(zip(found, paths, strict=True), 1):
            say(f"measuring {outcome.job.called} at {outcome.job.shape}")
            this = held.pop()
            held += [run.hold(after) for after in paths[number : number + 1]]
            outcome.rows += run.measure(this, path, _in_time(outcome.job), limits.measure)
            yield outcome
    finally:
        for process, _ in held:
            process.kill()


def prepare(jobs: Sequence[Job], folder: Path, say: Say, limits: Limits) -> list[str]:
    """Compile all that the jobs will run, side by side, and time nothing; what failed."""
    found = [Outcome(job) for job in jobs]
    missing = [
        (number, job, name)
        for number, job in enumerate(jobs)
        for name in (OURS, *_peers(job, limits)) if not _mark(job, name).exists()
    ]  # fmt: skip
    missing.sort(key=lambda each: (each[0] // WAVE, each[2] != OURS))
    say(f"compiling what {len(missing)} contenders of {len(jobs)} rows launch")
    with own(folder) as place:
        run = _Processes(place, "archc.bench.worker", folder / "cache")
        every = [(job, job.write(run=place), name) for _, job, name in missing]
        return [f"{each.job.called}: {told}" for each, told in run.fill(found, every, limits)]


def prepared(job: Job) -> Job | None:
    """The job beside those contenders of which all is compiled into the shared cache, or of which
    it is known that it was not in time; None where that cannot be said of ours."""
    late = (EAGER, COMPILED) if _late(job) else (EAGER,)
    ready = [n for n in (OURS, *job.against) if n in late or _mark(job, n).exists()]
    return replace(job, against=tuple(ready[1:])) if OURS in ready else None


def _mark(job: Job, name: str) -> Path:
    """A file that is there once all of a contender is compiled into the shared cache."""
    return Path(job.folder) / f"prepared_{name}"


def _late(job: Job) -> float:
    """How many seconds torch.compile had for a job and did not do with; 0 where it did, or nobody
    knows."""
    told = Path(job.folder) / LATE
    return float(told.read_text("utf-8")) if told.exists() else 0.0


def _late_rows(job: Job) -> list[Row]:
    """Rows in place of the times of what was not compiled in time."""
    late = _late(job) if COMPILED in job.against else 0.0
    if not late:
        return []
    reason = f"did not compile within {late:.0f} s"
    sequences = (FORWARD, BACKWARD, LAYER, LAYER_BACKWARD)
    return [
        {"refused": COMPILED, "what": what, "reason": reason, "late": late}
        for what in job.what if what in sequences
    ]  # fmt: skip


def _in_time(job: Job) -> Job:
    """The job without what was not compiled in time."""
    if not _late(job):
        return job
    return replace(job, against=tuple(name for name in job.against if name != COMPILED))


def _peers(job: Job, limits: Limits) -> list[str]:
    """Those of which something is to be compiled; torch.compile is not tried again with less
    time."""
    again = _late(job) < limits.fill
    return [name for name in job.against if name != EAGER and (name != COMPILED or again)]


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
        self, found: Sequence[Outcome], who: Sequence[tuple[Job, Path, str]], limits: Limits
    ) -> Iterator[tuple[Outcome, str]]:
        """Compile kernels, and candidates of peers in shares; remarks on processes that failed,
        once for each contender. What they leave to be done is done when it is measured, but by
        torch.compile, which has no shares: how long it had is noted. What is done is marked at
        once, so that a run that is cut off keeps it."""
        for job in (job for job, _, name in who if name == COMPILED):
            (Path(job.folder) / LATE).unlink(missing_ok=True)
        parts = [(each, *part) for each in who for part in self._shares(each[2], len(who), limits)]
        tasks = [("fill", path, name, share, of) for (_, path, name), share, of in parts]
        left = Counter((job.folder, name) for (job, _, name), _, _ in parts)

        def mark(number: int, done: Done) -> None:
            (job, _, name), _, _ = parts[number]
            left[job.folder, name] -= 1
            if not left[job.folder, name] and self.cache is not None:
                _mark(job, name).touch()

        ended: dict[tuple[str, str], list[Done]] = {}
        made = self.side_by_side(tasks, limits.cores, limits.fill, mark)
        for ((job, _, name), _, _), done in zip(parts, made, strict=True):
            ended.setdefault((job.folder, name), []).append(done)
        for job, _, name in who:
            (done, *_) = ended[job.folder, name]
            if name == COMPILED and done.code is None and done.seconds:
                (Path(job.folder) / LATE).write_text(str(done.seconds), encoding="utf-8")
                continue
            if bad := [done for done in ended[job.folder, name] if done.code != 0]:
                outcome = next(each for each in found if each.job is job)
                yield outcome, f"{name}, compiling ahead: {bad[0].reason()}"

    def _shares(self, name: str, contenders: int, limits: Limits) -> list[tuple[int, int]]:
        """The parts that the work of compiling a contender is cut into: candidates of a peer go to
        several processes, to fewer where searches of an earlier run are known."""
        if name in (OURS, COMPILED):
            return [(0, 1)]
        known = self.cache is not None and any(self.cache.glob("*/*.autotune.json"))
        least = SHARES // 2 if known else SHARES
        many = min(limits.cores, max(least, -(-limits.cores // contenders)))
        return [(share, many) for share in range(many)]

    def hold(self, path: Path) -> Started:
        """The measuring process of a job, which waits for its turn."""
        path.with_name(ROWS).unlink(missing_ok=True)
        return self.start("measure", path, path.with_name(ROWS), held=True)

    def measure(self, this: Started, path: Path, job: Job, seconds: float) -> list[Row]:
        """The rows of a job; what was found before a failure is kept. If the process was taken down
        while it measured peers, what was missing of ours is measured without them."""
        done, rows = self._measured(this, path, seconds)
        if done.code is not None and done.code < 0 and job.against:
            names = ", ".join(job.against)
            alone = replace(job, against=()).write("alone.json", self.folder)
            whole = {row["what"] for row in rows if "seconds" in row}
            rows = [row for row in rows if "what" not in row or row["what"] in whole]
            rows.append({"remark": f"the rest is measured without {names}: {done.reason()}"})
            done, more = self._measured(self.hold(alone), alone, seconds)
            rows += [row for row in more if row.get("what") not in whole]
        if done.code != 0:
            rows.append({"broken": f"measuring: {done.reason()}"})
        return rows

    def _measured(self, this: Started, path: Path, seconds: float) -> tuple[Done, list[Row]]:
        self.release(this)
        (done,) = self.wait([this], seconds)
        out = path.with_name(ROWS)
        lines = out.read_text("utf-8").split("\n") if out.exists() else []
        return done, [json.loads(line) for line in lines if line.endswith("}")]
