"""Several processes that take programs by their seeds, and the outcomes as they come."""

from __future__ import annotations

import argparse
import gc
import multiprocessing as mp
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection, wait

import torch

from tests.programs.attempt import Caught, Outcome, attempt
from tests.programs.programs import draw


def worker(seeds: Connection, results: Connection, numbers: bool, check: bool) -> None:
    """Programs by their seeds, until there is none."""
    torch.set_num_threads(1)
    gc.freeze()  # imports made many objects that stay
    while (seed := seeds.recv()) is not None:
        with Caught() as caught:
            results.send(attempt(draw(seed), numbers, check))
        if caught.error is not None:
            why = f"{type(caught.error).__name__}: {caught.error}"
            results.send(Outcome(seed, "failed", "draw", why))


class Worker:
    """A process and the program that it is at; started again should a program end it."""

    def __init__(self, given: argparse.Namespace):
        self.given = given
        self.seed: int | None = None
        self.start()

    def start(self) -> None:
        context = mp.get_context("spawn")
        theirs, self.seeds = context.Pipe(duplex=False)
        self.results, results = context.Pipe(duplex=False)
        arguments = (theirs, results, self.given.numbers, self.given.check)
        self.process = context.Process(target=worker, args=arguments, daemon=True)
        self.process.start()
        theirs.close()
        results.close()

    def give(self, seed: int) -> None:
        self.seed = seed
        self.seeds.send(seed)

    def result(self) -> Outcome:
        """What became of the program at hand."""
        assert self.seed is not None
        try:
            return self.results.recv()
        except EOFError:
            self.process.join()
            ended = Outcome(
                self.seed, "failed", "process", f"Ended: status {self.process.exitcode}"
            )
            self.start()
            return ended


def many(given: argparse.Namespace, seeds: Iterator[int]) -> Iterator[Outcome]:
    """The outcomes of the programs of some seeds, as they come."""
    start, count = time.monotonic(), 0
    busy: dict[Connection, Worker] = {}
    for _ in range(given.workers):
        each, seed = Worker(given), next(seeds, None)
        if seed is not None:
            each.give(seed)
            busy[each.results] = each
    while busy:
        for ready in wait(list(busy)):
            each = busy.pop(ready)  # type: ignore[arg-type]
            outcome = each.result()
            count += 1
            told(outcome, count)
            late = time.monotonic() - start > given.seconds
            seed = None if late else next(seeds, None)
            if seed is None:
                each.seeds.send(None)
            else:
                each.give(seed)
                busy[each.results] = each
            yield outcome


def told(outcome: Outcome, count: int) -> None:
    if outcome.status == "failed":
        print(f"seed {outcome.seed} failed at {outcome.gate}: {outcome.why[:200]}", flush=True)
    if count % 500 == 0:
        print(f"{count} programs", flush=True)
