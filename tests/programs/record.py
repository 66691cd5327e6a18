"""What became of drawn programs, as a file that later runs add to.

A run is told by what each program went through, the commit and the versions: runs that agree in
these are one entry, with the seeds that it covers.
"""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from tests.programs.attempt import Outcome

ROOT = Path(__file__).parents[2]
KEPT = 200
"""Failures of a run whose programs are written down whole."""

SUMMED = ("outcomes", "numbers", "refused", "failures by sort", "seconds of gates")
"""Counts of a run, by name."""

Run = dict[str, Any]


class Record:
    """The runs of a file."""

    def __init__(self, path: Path | None):
        self.path = path
        self.runs: list[Run] = []
        if path is not None and path.exists():
            self.runs = json.loads(path.read_text(encoding="utf-8"))["runs"]

    def seeds(self, gates: str) -> set[int]:
        """The programs that went through these gates already."""
        return covered(
            [each for run in self.runs if run["gates"] == gates for each in run["seeds"]]
        )

    def failed(self, gates: str) -> list[int]:
        """The programs that failed and did not pass since."""
        runs = (run for run in self.runs if run["gates"] == gates)
        return [f["seed"] for run in runs for f in run["failures"] if "passes at" not in f]

    def texts(self, gates: str) -> dict[int, str]:
        """The programs that failed, by their seeds."""
        runs = (run for run in self.runs if run["gates"] == gates)
        return {f["seed"]: f["text"] for run in runs for f in run["failures"]}

    def add(self, gates: str, outcomes: Sequence[Outcome], seconds: float) -> None:
        """Note what became of programs, and write the file."""
        self.put(new_run(gates, outcomes, seconds))
        self.write()

    def passed(self, gates: str, seeds: Iterable[int]) -> None:
        """Note that programs that had failed pass now, and write the file."""
        now, seeds = commit(), set(seeds)
        for run in self.runs:
            for failure in run["failures"]:
                if run["gates"] == gates and failure["seed"] in seeds:
                    failure["passes at"] = now
        self.write()

    def take(self, other: Record) -> None:
        """Add the runs of another record; refused where a program is in both."""
        for run in other.runs:
            twice = self.seeds(run["gates"]) & covered(run["seeds"])
            if twice:
                sys.exit(
                    f"{other.path}: {len(twice)} programs, {min(twice)} first, are there already"
                )
            self.put(run)

    def put(self, new: Run) -> None:
        """Add a run to that which it agrees with, if there is one."""
        alike = [run for run in self.runs if all(run[k] == new[k] for k in ("gates", "versions"))]
        alike = [run for run in alike if run["commit"] == new["commit"]]
        if not alike:
            self.runs.append(new)
            return
        (run,) = alike
        run["seeds"] = ranges(covered([*run["seeds"], *new["seeds"]]))
        run["programs"] += new["programs"]
        run["seconds"] = round(run["seconds"] + new["seconds"], 1)
        for name in SUMMED:
            run[name] = summed([run[name], new[name]])
        run["examples of refusals"] = {**new["examples of refusals"], **run["examples of refusals"]}
        run["failures"] = (run["failures"] + new["failures"])[:KEPT]

    def totals(self) -> dict[str, Any]:
        """All runs together, by what their programs went through."""
        found = {}
        for gates in sorted({run["gates"] for run in self.runs}):
            runs = [run for run in self.runs if run["gates"] == gates]
            found[gates] = {
                "programs": sum(run["programs"] for run in runs),
                "seeds": ranges(self.seeds(gates)),
                **{name: summed([run[name] for run in runs]) for name in SUMMED},
                "failed and not passed since": self.failed(gates),
            }
        return found

    def write(self) -> None:
        """The file, as it is now."""
        if self.path is not None:
            text = json.dumps({"totals": self.totals(), "runs": self.runs}, indent=1)
            self.path.write_text(text + "\n", encoding="utf-8")


def new_run(gates: str, outcomes: Sequence[Outcome], seconds: float) -> Run:
    """What became of some programs, as plain data."""
    failed = [each for each in outcomes if each.status == "failed"]
    refused = [each for each in outcomes if each.status == "refused"]
    spent = Counter[str]()
    for each in outcomes:
        spent.update(each.gates)
    return {
        "gates": gates,
        "commit": commit(),
        "versions": versions(),
        "seeds": ranges({each.seed for each in outcomes}),
        "programs": len(outcomes),
        "seconds": round(seconds, 1),
        "outcomes": dict(Counter(each.status for each in outcomes)),
        "numbers": dict(Counter(each.numbers for each in outcomes if each.numbers)),
        "refused": dict(Counter(code(each) for each in refused)),
        "examples of refusals": {
            code(each): {"seed": each.seed, "why": each.why} for each in reversed(refused)
        },
        "seconds of gates": {name: round(value, 1) for name, value in spent.items()},
        "failures by sort": dict(Counter(" ".join(each.sort) for each in failed)),
        "failures": [failure(each) for each in failed[:KEPT]],
    }


def failure(outcome: Outcome) -> dict[str, Any]:
    """A program that failed: where, why, and its text."""
    return {
        "seed": outcome.seed,
        "sort": " ".join(outcome.sort),
        "why": outcome.why[:2000],
        "text": outcome.text,
    }


def code(outcome: Outcome) -> str:
    """The codes of a refusal."""
    return outcome.why.split("\n")[0]


def ranges(seeds: Iterable[int]) -> list[list[int]]:
    """Seeds as runs of neighbours, each by its first and last."""
    found: list[list[int]] = []
    for seed in sorted(seeds):
        if found and found[-1][1] == seed - 1:
            found[-1][1] = seed
        else:
            found.append([seed, seed])
    return found


def covered(ranges: Sequence[Sequence[int]]) -> set[int]:
    """The seeds of some runs of neighbours."""
    return {seed for first, last in ranges for seed in range(first, last + 1)}


def summed(counts: Sequence[dict[str, float]]) -> dict[str, float]:
    """Counts by name, the largest first."""
    total = Counter[str]()
    for each in counts:
        total.update(each)  # type: ignore[arg-type]
    return {name: round(value, 1) for name, value in total.most_common()}


def remaining(wanted: Iterable[int], done: set[int]) -> Iterator[int]:
    """The seeds that are still to be tried."""
    return (seed for seed in wanted if seed not in done)


def commit() -> str:
    """The commit of the checkout that is run."""
    asked = ["git", "rev-parse", "--short=10", "HEAD"]
    return subprocess.run(
        asked, cwd=ROOT, check=False, capture_output=True, text=True
    ).stdout.strip()


def versions() -> dict[str, str]:
    """The versions of what is run."""
    named = ("torch", "triton", "sympy", "networkx", "lark")
    return {"python": platform.python_version(), **{n: metadata.version(n) for n in named}}
