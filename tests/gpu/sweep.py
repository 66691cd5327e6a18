"""Every memory of the bundled specs, and of some unlike them, by kernels: right beside float64.

    python -m tests.gpu.sweep first                 # 22 specs; compiling takes minutes
    python -m tests.gpu.sweep random -n 1000 --seconds 240
    python -m tests.gpu.sweep first peers --seconds 600 -o benchmarks/results/gpu_peers.json

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
    """The cases of some suites for some specs; `random` are `count` in all."""
    found: list[Case] = []
    for suite in suites:
        for number, spec in enumerate(specs):
            if suite == "random":
                share = count // len(specs) + (number < count % len(specs))
                found += some(spec, share, seed)
            else:
                found += SUITES[suite](spec)
    return list(dict.fromkeys(found))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, print the table, write the record."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("suites", nargs="*", choices=[*SUITES, "random"], default=["first"])
    parser.add_argument("--specs", nargs="*", choices=EVERY, default=EVERY)
    parser.add_argument("-n", "--count", type=int, default=1000, help="random cases in all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=14)
    parser.add_argument("--seconds", type=float, default=240, help="stop after about these")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("-o", "--output", type=Path, help="a JSON file for what came out")
    parser.add_argument("--commit", help="what was run, where git does not know")
    given = parser.parse_args(arguments)
    suites = given.suites or ["first"]
    cases = cases_of(suites, given.specs, given.count, given.seed)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))
    begun, done = time.monotonic(), []
    try:
        for one in run_all(cases, given.device, given.workers, given.seconds):
            done.append(one)
            if given.output is not None and len(done) % 20 == 0:
                write(given.output, record.recorded(done, suites, len(cases), given.device))
    finally:
        kept = record.recorded(done, suites, len(cases), given.device)
        kept["seconds"] = round(time.monotonic() - begun)
        kept["commit"] = given.commit or kept["commit"]
        print("\n".join(record.table(done)))
        counts = ("cases", "not run", "wrong", "run twice", "seconds")
        print({name: kept[name] for name in counts}, flush=True)
        if given.output is not None:
            write(given.output, kept)
    return int(bool(kept["wrong"] or kept["not run"]))


def write(path: Path, found: record.Row) -> None:
    """What is recorded; all that is done so far, should the rest not come."""
    path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
