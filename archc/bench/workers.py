"""Processes that compile and measure: started, waited for, and stopped after their time."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
"""Variables that libraries take the number of their threads from."""

Started = tuple["subprocess.Popen[str]", Path]
"""A process, and the stem of the files that it prints into."""


@dataclass(frozen=True)
class Done:
    """How a process ended; `code` is None for one that was stopped after its time."""

    code: int | None
    out: str
    err: str

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
    """Processes of one run, each `python -m module MODE JOB ...`, with the job's cache on disk.
    What they print is left in the folder."""

    def __init__(self, folder: Path, module: str):
        self.folder, self.module, self.count = folder, module, 0

    def start(self, mode: str, job: Path, *rest: object, alone: bool = True) -> Started:
        """Start one; if it is not alone, it takes no more than one core."""
        self.count += 1
        log = self.folder / f"worker_{self.count}_{mode}"
        command = [sys.executable, "-m", self.module, mode, str(job), *map(str, rest)]
        env = {**os.environ, "TRITON_CACHE_DIR": str(job.with_name("cache"))}
        env |= {} if alone else dict.fromkeys(THREADS, "1")
        with log.with_suffix(".out").open("w") as out, log.with_suffix(".err").open("w") as err:
            made = subprocess.Popen(command, env=env, stdout=out, stderr=err, text=True)
        return made, log

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
