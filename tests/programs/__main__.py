"""Many drawn programs, by several processes: what became of each, as JSON.

    OMP_NUM_THREADS=1 python -m tests.programs --programs 20000 --workers 32 -o texts.json
    OMP_NUM_THREADS=1 python -m tests.programs --numbers --check --programs 2000 --first 100000 \\
        --workers 32 -o numbers.json
    python -m tests.programs --merge texts.json numbers.json -o benchmarks/results/fuzz.json

It runs from the top of a checkout in which `import archc` works, with torch, Triton, lark, sympy
and networkx. The first command holds every program against the front end, the formatter and the
text of both backends; with `--numbers` each is also run, in every form, and with `--check` the
self-check of its file is made. A file that `-o` names is added to, as programs are done: what it
has already is not done again, so that a run may be ended at any time. `--merge` makes one file of
several. `--again` tries those that failed once more, if they are still drawn as they were.
`--seconds` ends the run early, `--seed N` shows one program and makes it small if it fails. The
exit status is 1 where a program failed.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from itertools import islice
from pathlib import Path

from tests.programs.attempt import Outcome, attempt
from tests.programs.many import many
from tests.programs.programs import draw
from tests.programs.record import Record, remaining
from tests.programs.reduce import reduced

EVERY = 50
"""Programs after which the file is written."""


def options() -> argparse.Namespace:
    """What the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m tests.programs", description=__doc__)
    parser.add_argument("--programs", type=int, default=200)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--numbers", action="store_true")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--merge", type=Path, nargs="+")
    parser.add_argument("--seed", type=int)
    parser.add_argument("-o", dest="output", type=Path)
    return parser.parse_args()


def gates_of(given: argparse.Namespace) -> str:
    """What each program goes through, in words."""
    more = [word for word, asked in (("numbers", given.numbers), ("files", given.check)) if asked]
    return ", ".join(["texts", *more])


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


def run(given: argparse.Namespace, record: Record) -> None:
    """Try programs, and note what becomes of them as they are done."""
    gates = gates_of(given)
    if given.again:
        same = [s for s in record.failed(gates) if draw(s).text() == record.texts(gates)[s]]
        outcomes = many(given, iter(same))
        record.passed(gates, [each.seed for each in outcomes if each.status != "failed"])
        return
    seeds = remaining(range(given.first, given.first + given.programs), record.seeds(gates))
    outcomes, start = many(given, seeds), time.monotonic()
    while part := list[Outcome](islice(outcomes, EVERY)):
        now = time.monotonic()
        record.add(gates, part, now - start)
        start = now


def main() -> int:
    """Run what was asked for; 1 where a program failed."""
    given = options()
    if given.seed is not None:
        return one(given)
    if given.merge:
        record = Record(None)
        for path in given.merge:
            record.take(Record(path))
        record.path = given.output
        record.write()
    else:
        record = Record(given.output)
        run(given, record)
    print(json.dumps(record.totals(), indent=1))
    return 1 if any(each["failed and not passed since"] for each in record.totals().values()) else 0


if __name__ == "__main__":
    sys.exit(main())
