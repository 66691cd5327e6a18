"""Many drawn programs, by several processes: what became of each, as JSON.

    OMP_NUM_THREADS=1 python -m tests.programs --programs 20000 --workers 32 -o texts.json
    OMP_NUM_THREADS=1 python -m tests.programs --numbers --programs 2000 --first 100000 \\
        --workers 32 -o numbers.json

It runs from the top of a checkout in which `import archc` works, with torch, Triton, lark, sympy
and networkx. The first command holds every program against the front end, the formatter and the
text of both backends; with `--numbers` each is also run, in every form, and with `--check` the
self-check of its file is made. `--seconds` ends the run early, `--seed N` shows one program and
makes it small if it fails. The exit status is 1 where a program failed.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from collections import Counter
from dataclasses import asdict
from pathlib import Path

import torch

from tests.programs.attempt import Outcome, attempt
from tests.programs.many import many
from tests.programs.programs import draw
from tests.programs.reduce import reduced

KEPT = 200
"""Failures whose programs are written down whole."""


def options() -> argparse.Namespace:
    """What the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m tests.programs", description=__doc__)
    parser.add_argument("--programs", type=int, default=200)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--numbers", action="store_true")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--seed", type=int)
    parser.add_argument("-o", dest="output", type=Path)
    return parser.parse_args()


def record(given: argparse.Namespace, outcomes: list[Outcome], seconds: float) -> dict:
    """The run as plain data."""
    failed = [each for each in outcomes if each.status == "failed"]
    codes = Counter(e.why.split("\n")[0] for e in outcomes if e.status == "refused")
    gates = Counter[str]()
    for each in outcomes:
        gates.update(each.gates)
    return {
        "command": " ".join(["python -m tests.programs", *sys.argv[1:]]),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "programs": len(outcomes),
        "seconds": round(seconds, 1),
        "outcomes": dict(Counter(each.status for each in outcomes)),
        "numbers": dict(Counter(each.numbers for each in outcomes if each.numbers)),
        "refused": dict(codes.most_common()),
        "examples of refusals": {c: refusal(outcomes, c) for c in codes},
        "seconds of gates": {name: round(spent, 1) for name, spent in gates.most_common()},
        "failures by sort": {
            " ".join(s): n for s, n in Counter(e.sort for e in failed).most_common()
        },
        "failures": [{**asdict(e), "text": draw(e.seed).text()} for e in failed[:KEPT]],
    }


def refusal(outcomes: list[Outcome], code: str) -> dict[str, object]:
    """The first program that was refused with a code."""
    first = next(e for e in outcomes if e.status == "refused" and e.why.split("\n")[0] == code)
    return {"seed": first.seed, "why": first.why}


def one(given: argparse.Namespace) -> int:
    """Show one program, and make it small if it fails."""
    program = draw(given.seed)
    first = attempt(program, given.numbers, given.check)
    print(program.text())
    print(first.status, first.gate, first.numbers, first.why, first.trace, sep="\n")
    if first.status != "failed":
        return 0
    small = reduced(
        program,
        lambda p: (
            (found := attempt(p, given.numbers, given.check)).status == "failed"
            and found.sort == first.sort
        ),
    )
    print("in small:", small.text(), attempt(small, given.numbers, given.check).why, sep="\n\n")
    return 1


def main() -> int:
    """Run what was asked for; 1 where a program failed."""
    given = options()
    if given.seed is not None:
        return one(given)
    start = time.monotonic()
    outcomes = many(given)
    found = record(given, outcomes, time.monotonic() - start)
    if given.output is not None:
        given.output.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    shown = {k: v for k, v in found.items() if k not in ("failures", "examples of refusals")}
    print(json.dumps(shown, indent=1))
    return 1 if found["outcomes"].get("failed") else 0


if __name__ == "__main__":
    sys.exit(main())
