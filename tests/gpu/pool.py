"""Cases in worker processes, several at a time; one that dies costs the case it was at."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from tests.gpu.cases import Case, by_variant

ROOT = Path(__file__).parents[2]
SPOILED = ("CUDA error", "Triton Error [CUDA]", "CUDA out of memory")
"""What is said by a process whose later launches mean nothing."""

FULL, TRIES, WAIT = ("out of memory", "ALLOC_FAILED"), 4, 5
"""What is said where other workers have the GPU's memory; how often a case is tried, and how many
seconds later."""

GRACE = 20
"""Seconds that a case may end after there should be an end."""

Done = tuple[Case, dict[str, Any]]


def is_full(found: dict[str, Any]) -> bool:
    """Whether a case failed as others had the memory."""
    return any(word in found.get("failed", "") for word in FULL)


class Worker:
    """A process that runs cases one after the other, started when the first one comes; of several
    GPUs it sees one, by its number."""

    def __init__(self, device: str, number: int = 0):
        self.device = device
        found = torch.cuda.device_count() if device == "cuda" else 0
        seen = {"CUDA_VISIBLE_DEVICES": str(number % found)} if found > 1 else {}
        self.environment = {**os.environ, **seen}
        self.told = tempfile.TemporaryFile("w+")  # noqa: SIM115 (as long as the worker lives)
        self.process: subprocess.Popen[str] | None = None
        self.answers: queue.Queue[str] = queue.Queue()

    def run(self, case: Case, repeat: bool, patience: float) -> dict[str, Any]:
        """What became of a case that may take so many seconds."""
        process = self.process or self._start()
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps({**asdict(case), "repeat": repeat}) + "\n")
            process.stdin.flush()
            line = self.answers.get(timeout=patience)
        except (BrokenPipeError, queue.Empty):
            line = ""
        if not line:
            self.answers.empty() and time.sleep(0.2)
            code = process.poll()
            self.stop()
            why = f"after {patience:.0f} s" if code is None else f"by itself, with {code}"
            self.told.seek(0)
            trace = self.told.read()[-3000:]
            return {"failed": f"the process was ended {why}", "trace": trace, "late": code is None}
        found = json.loads(line)
        if any(word in found.get("failed", "") for word in SPOILED):
            self.stop()
        return found

    def run_in_turn(self, case: Case, repeat: bool, patience: float, end: float) -> dict[str, Any]:
        """What became of a case before some end, tried again where there was no memory left."""
        found: dict[str, Any] = {}
        for left in reversed(range(TRIES)):
            found = self.run(case, repeat, min(patience, end + GRACE - time.monotonic()))
            if not is_full(found) or not left or time.monotonic() + WAIT > end:
                break
            self.stop()
            time.sleep(WAIT)
        return found

    def _start(self) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "tests.gpu.worker", self.device]
        self.process = process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.told,
            text=True, env=self.environment,
        )  # fmt: skip
        answers = self.answers = queue.Queue()

        def listen() -> None:
            assert process.stdout is not None
            for line in filter(str.strip, process.stdout):  # a compiler may print empty ones
                answers.put(line)
            answers.put("")

        threading.Thread(target=listen, daemon=True).start()
        return process

    def stop(self) -> None:
        """End the process, if there is one."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


class Groups:
    """What is left to do: cases that share kernels together, specs that nobody has begun first,
    and then a worker's own."""

    def __init__(self, cases: Sequence[Case]):
        self.left, self.lock = by_variant(cases), threading.Lock()
        self.busy: Counter[str] = Counter()

    def take(self, known: set[str]) -> list[Case]:
        """The next cases for a worker that has loaded some specs; none when all is done."""
        with self.lock:
            if not self.left:
                return []
            waiting = Counter(group[0].spec for group in self.left)

            def order(group: list[Case]) -> tuple[bool, bool, float]:
                spec = group[0].spec
                waits = waiting[spec] / len(self.left)
                return self.busy[spec] > 0, spec not in known, self.busy[spec] - waits

            best = min(self.left, key=order)
            self.left.remove(best)
            if best[0].spec not in known:
                self.busy[best[0].spec] += 1
                known.add(best[0].spec)
            return best


def run_all(
    cases: Sequence[Case], device: str, workers: int, seconds: float, patience: float = 300
) -> Iterator[Done]:
    """Every case that is done within so many seconds and `GRACE`, as it is done, and those that
    took more than `patience`. The first case of every group of kernels is run twice, to see whether
    the same comes out."""
    groups, done = Groups(cases), queue.Queue[Done | None]()
    end = time.monotonic() + seconds

    def work(number: int) -> None:
        worker, known = Worker(device, number), set[str]()
        while group := groups.take(known):
            for case in group:
                left = end - time.monotonic()
                if left < 0:
                    break
                found = worker.run_in_turn(case, case is group[0], patience, end)
                if not found.get("late") or left + GRACE > patience:
                    done.put((case, found))
        worker.stop()
        done.put(None)

    threads = [threading.Thread(target=work, args=[n], daemon=True) for n in range(workers)]
    for thread in threads:
        thread.start()
    for _ in threads:
        while (one := done.get()) is not None:
            yield one
