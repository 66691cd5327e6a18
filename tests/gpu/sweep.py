"""Every memory of the bundled specs, and of some unlike them, by kernels: right beside float64.

    python -m tests.gpu.sweep first                 # 22 specs; compiling takes minutes
    python -m tests.gpu.sweep random -n 1000 --seconds 240
    python -m tests.gpu.sweep first peers --seconds 600 -o benchmarks/results/gpu_peers.json
    python -m tests.gpu.sweep hard --seconds 150 --log hard.jsonl -o hard.json   # again: goes on

Ends with 1 if anything is wrong. `--device cpu` runs under Triton's interpreter, in float32 (set
TRITON_INTERPRET=1).
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests.gpu import record
from tests.gpu.cases import SUITES, Case, some
from tests.gpu.memories import EVERY
from tests.gpu.pool import run_all


def cases_of(suites: Sequence[str], specs: Sequence[str], count: int, seed: int) -> list[Case]:
    """The cases of some suites for some specs; `random` are `count` in all. Those in float16 come
    last: they show the least that is new."""
    found: list[Case] = []
    for suite in suites:
        for number, spec in enumerate(specs):
            if suite == "random":
                share = count // len(specs) + (number < count % len(specs))
                found += some(spec, share, seed)
            else:
                found += SUITES[suite](spec)
    return sorted(dict.fromkeys(found), key=lambda case: case.dtype == "float16")


def options() -> argparse.ArgumentParser:
    """What can be asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("suites", nargs="*", choices=[*SUITES, "random"], default=["first"])
    parser.add_argument("--specs", nargs="*", choices=EVERY, default=EVERY)
    parser.add_argument("-n", "--count", type=int, default=1000, help="random cases in all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=14)
    parser.add_argument("--seconds", type=float, default=240, help="stop after about these")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("-o", "--output", type=Path, help="a JSON file for what came out")
    parser.add_argument("--commit", help="what was run, where git does not know")
    parser.add_argument("--log", type=Path, help="cases that are done: added to, not run again")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, print the table, write the record."""
    given = options().parse_args(arguments)
    suites, begun = given.suites or ["first"], time.monotonic()
    cases = cases_of(suites, given.specs, given.count, given.seed)
    here = record.where(given.device)
    here["commit"] = given.commit or here["commit"]
    before = record.kept(given.log) if given.log else {}
    before = {case: before[case] for case in cases if case in before}
    done = [(case, found) for case, (found, _) in before.items()]
    places = [where for _, where in before.values()] + [here]

    def kept() -> record.Row:
        return record.recorded(done, suites, len(cases), places)

    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))
    left = [case for case in cases if case not in before]
    try:
        for one in run_all(left, given.device, given.workers, given.seconds):
            done.append(one)
            if given.log is not None:
                record.keep(given.log, one, here)
            if given.output is not None and len(done) % 20 == 0:
                write(given.output, kept())
    finally:
        found = kept() | {"seconds": round(time.monotonic() - begun)}
        print("\n".join(record.table(done)))
        counts = ("cases", "not run", "wrong", "run twice", "seconds")
        print({name: found[name] for name in counts}, flush=True)
        if given.output is not None:
            write(given.output, found)
    return int(bool(found["wrong"] or found["not run"]))


def write(path: Path, found: record.Row) -> None:
    """What is recorded; all that is done so far, should the rest not come."""
    path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
