"""First speed, beside fla-core 0.6.0 in one run on one GPU: sequences at B 2, T 8192, H 32, D 128
in bfloat16, forward and with gradients; decoding at batches of 1, 64 and 256; first calls.

    python benchmarks/first_speed.py -o benchmarks/results/first_speed.json

It takes about five minutes with 16 cores. The aims are printed, and whether each is met; the exit
status is 3 only if a number of ours is wrong or missing.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console

from archc.bench.job import BACKWARD, DECODE, FORWARD, LOADING, OURS
from archc.bench.processes import Limits, measure
from archc.bench.record import peers_file, record
from archc.bench.report import Report, notes, recorded, report, table
from archc.bench.subject import Request, subject

SHAPE = (2, 8192, 32, 128)
BATCHES = (1, 64, 256)
SPECS = {
    "kda": (FORWARD, BACKWARD, DECODE),
    "gla": (FORWARD, BACKWARD),
    "gated_delta": (FORWARD, BACKWARD),
    "linear_attention_simple": (FORWARD, BACKWARD),
}
PEERS = {"gated_delta": ("fla", "fla-unguarded")}
"""Whom each is timed against, if not `fla` alone."""

AIMS = {"forward": 1.0, "forward + backward": 0.7}
"""How many times fla's speed ours should be."""

DECODE_AIM, COLD_AIM, WARM_AIM = 0.8, 20.0, 1.0
"""The share of the roofline at a batch of 64, and seconds of the first calls, forward and with
gradients together, after the file is loaded."""


def run(seconds: float, keep: str | None, specs: list[str], first: float) -> Report:
    """Compile the specs and measure them."""
    with tempfile.TemporaryDirectory(prefix="first-speed-") as name:
        folder = Path(keep or name).resolve()
        jobs = []
        for spec in specs:
            against = PEERS.get(spec, ("fla",))
            asked = Request(
                SPECS[spec], against, BATCHES, peers_file(), "cuda", "bfloat16", seconds, {}
            )
            jobs.append(subject(spec, SHAPE, asked, folder / spec))
        start = time.monotonic()

        def say(text: str) -> None:
            print(f"[{time.monotonic() - start:5.0f} s] {text}", file=sys.stderr, flush=True)

        limits = Limits(first=first, fill=150, measure=160, cores=os.cpu_count() or 1)
        return report(list(measure(jobs, folder, say, limits, first > 0)))


def aims(found: Report) -> Iterator[tuple[str, float, float, bool]]:
    """Each aim: what, the number, the aim, whether it is met."""
    for case in found.cases:
        by = {entry.contender: entry for entry in case.entries}
        peer = next((e for n, e in by.items() if n != OURS and e.ours_faster is not None), None)
        if case.what in AIMS and peer is not None and peer.ours_faster is not None:
            wanted = AIMS[case.what]
            what = f"{case.spec}, {case.what}: times as fast as {peer.contender}"
            yield what, peer.ours_faster, wanted, peer.ours_faster >= wanted
        share = by[OURS].roofline if OURS in by else None
        if case.what.startswith("decode") and case.shape[0] == 64 and share is not None:
            what = f"{case.spec}, {case.what}, B = 64: share of the bandwidth"
            yield what, share, DECODE_AIM, share >= DECODE_AIM
    for spec, kinds in found.first.items():
        for kind, wanted in (("cold", COLD_AIM), ("warm", WARM_AIM)):
            taken = sum(s for what, s in kinds.get(kind, {}).items() if what != LOADING)
            yield f"{spec}, first calls, {kind}: seconds", taken, wanted, 0 < taken <= wanted


def markdown(found: Report) -> Iterator[str]:
    """The rows of a table for a page: ours beside each peer."""
    yield "| | B, T, H, D | ours | peer | ours faster | roofline | peak MiB: ours, peer |"
    yield "|---|---|---:|---:|---:|---:|---:|"
    for case in found.cases:
        ours = next((e for e in case.entries if e.contender == OURS), None)
        if ours is None or ours.milliseconds is None:
            continue
        for peer in (e for e in case.entries if e.contender != OURS):
            if peer.milliseconds is None or peer.ours_faster is None:
                shown = (f"{peer.contender}: refused", "", "")
            else:
                wrong = " (wrong numbers)" if peer.wrong else ""
                time = f"{peer.contender}: {peer.milliseconds:.3g} ms{wrong}"
                shown = (time, f"{peer.ours_faster:.2f}", f"{peer.peak_mib or 0:,.0f}")
            shape = ", ".join(map(str, case.shape))
            yield (
                f"| {case.spec}, {case.what} | {shape} | {ours.milliseconds:.3g} ms | {shown[0]} |"
                f" {shown[1]} | {ours.roofline or 0:.0%} | {ours.peak_mib or 0:,.0f}, {shown[2]} |"
            )


def main() -> None:
    """Measure, or read what was measured; print it, and write it as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--output", help="where the numbers go, as JSON")
    parser.add_argument("--seconds", type=float, default=2.0, help="for each thing that is timed")
    parser.add_argument("--keep", help="a folder for generated files, cache and logs")
    parser.add_argument("--specs", nargs="+", default=list(SPECS), choices=list(SPECS))
    parser.add_argument(
        "--first", type=float, default=90, help="seconds that a first call may take; 0: leave out"
    )
    parser.add_argument("--commit", help="where this is a copy without git: what it is a copy of")
    parser.add_argument("--again", help="read this file instead of measuring")
    parser.add_argument("--markdown", action="store_true", help="print a table for a page")
    given = parser.parse_args()
    if given.again:
        found = recorded(json.loads(Path(given.again).read_text(encoding="utf-8")))
    else:
        found = run(given.seconds, given.keep, given.specs, given.first)
    if given.output:
        Path(given.output).parent.mkdir(parents=True, exist_ok=True)
        command = ["python", "benchmarks/first_speed.py", *sys.argv[1:]]
        data = {**record(command, peers_file()), **found.data()}
        data["commit"] = given.commit or data["commit"]
        Path(given.output).write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    if given.markdown:
        print("\n".join(markdown(found)))
        return
    Console(width=170, highlight=False).print(table(found))
    print("\n".join(["", *notes(found), ""]))
    for what, number, wanted, met in aims(found):
        print(f"{'met   ' if met else 'MISSED'}  {what}: {number:.3g}, the aim is {wanted:g}")
    for reason in found.failures():
        print(f"not to be relied on: {reason}")
    sys.exit(3 if found.failures() else 0)


if __name__ == "__main__":
    main()
