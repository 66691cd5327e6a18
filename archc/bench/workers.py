"""Processes that compile and measure: started, waited for, and stopped after their time."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
"""Variables that libraries take the number of their threads from."""

Started = tuple["subprocess.Popen[str]", Path]
"""A process, and the stem of the files that it prints into."""


@dataclass(frozen=True)
class Done:
    """How a process ended; `code` is None for one that was stopped after its time, which it had
    `seconds` of: 0 where it was never begun."""

    code: int | None
    out: str
    err: str
    seconds: float = 0.0

    def reason(self) -> str:
        """The reason of its failure."""
        if self.code is None:
            return "stopped after its time"
        lines = [line.strip() for line in self.err.split("\n") if line.strip()]
        if self.code < 0:
            said = f": {' / '.join(lines[:3])}" if lines else ""
            return f"its process was ended by signal {-self.code}{said}"
        return lines[-1] if lines else f"exit status {self.code}"


class Workers:
    """Processes of one run, each `python -m module MODE JOB ...`, with what is compiled kept in a
    cache on disk: one that they share, or each job's own. What they print is left in the folder."""

    def __init__(self, folder: Path, module: str, cache: Path | None = None):
        self.folder, self.module, self.cache, self.count = folder, module, cache, 0

    def start(
        self, mode: str, job: Path, *rest: object, alone: bool = True, held: bool = False
    ) -> Started:
        """Start one; if it is not alone, it takes no more than one core. One that is `held` may
        load what it needs, and waits for a line on its standard input."""
        self.count += 1
        log = self.folder / f"worker_{self.count}_{mode}"
        command = [sys.executable, "-m", self.module, mode, str(job), *map(str, rest)]
        cache = self.cache or job.with_name("cache")
        env = {**os.environ, "TRITON_CACHE_DIR": str(cache)}
        env["TORCHINDUCTOR_CACHE_DIR"] = str(cache / "inductor")
        env |= {} if alone else dict.fromkeys(THREADS, "1")
        given = subprocess.PIPE if held else subprocess.DEVNULL
        with log.with_suffix(".out").open("w") as out, log.with_suffix(".err").open("w") as err:
            made = subprocess.Popen(
                command, env=env, stdin=given, stdout=out, stderr=err, text=True
            )  # fmt: skip
        return made, log

    def release(self, started: Started) -> None:
        """Let a held process go on; one that has ended already is left as it is."""
        process, _ = started
        if process.stdin is not None:
            with suppress(BrokenPipeError):
                process.stdin.write("\n")
                process.stdin.close()

    def side_by_side(
        self, tasks: Sequence[tuple[Any, ...]], most: int, seconds: float,
        ended: Callable[[int, Done], None] = lambda number, done: None,
    ) -> list[Done]:  # fmt: skip
        """How processes ended of which at most so many run at once, in their order; those that
        there was no time for are as good as stopped. Of each that ends by itself `ended` is told
        at once, by its number."""
        end = time.monotonic() + seconds
        waiting, running = deque(enumerate(tasks)), dict[int, Started]()
        begun: dict[int, float] = {}
        found = [Done(None, "", "")] * len(tasks)
        while (waiting or running) and time.monotonic() < end:
            while waiting and len(running) < most:
                number, task = waiting.popleft()
                begun[number] = time.monotonic()
                running[number] = self.start(*task, alone=False)
            for number in [n for n, (process, _) in running.items() if process.poll() is not None]:
                (found[number],) = self.wait([running.pop(number)], 0)
                ended(number, found[number])
            time.sleep(0.05)
        for number, started in running.items():
            (stopped,) = self.wait([started], 0)
            found[number] = replace(stopped, seconds=time.monotonic() - begun[number])
        return found

    def wait(self, started: Sequence[Started], seconds: float) -> Iterator[Done]:
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
            yield Done(code, out, err)
