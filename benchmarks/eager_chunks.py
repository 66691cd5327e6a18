"""How fast the chunked form of a recurrence is against its loop over tokens, in eager PyTorch.

    python benchmarks/eager_chunks.py -o benchmarks/results/eager_chunks.json

One process for each case, so that its peak memory is its own. Times are medians in seconds, memory
is what the process needed beyond its inputs at its peak.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import archc

SPEC, BATCH, HEADS, KEY, VALUE = "kda", 1, 4, 64, 64
LOOP, CHUNKS = "loop", "chunks"
COMPARED = 4096
LENGTHS = (1024, 2048, 4096, 8192, 16384, 32768)
ENOUGH, MOST, ROUNDS = 3.0, 9, 5
"""Seconds and runs after which a case has been measured, and how often loop and chunks take
turns."""


def arguments(tokens: int) -> dict[str, torch.Tensor]:
    """Random float32 inputs of the memory: unit keys and queries, gates as the layer has them."""
    torch.manual_seed(0)
    shape = (BATCH, tokens, HEADS)
    unit = torch.nn.functional.normalize
    found = {
        "q": unit(torch.randn(*shape, KEY), dim=-1),
        "k": unit(torch.randn(*shape, KEY), dim=-1),
        "v": torch.randn(*shape, VALUE),
        "log_alpha": -torch.nn.functional.softplus(torch.randn(*shape, KEY)),
        "beta": torch.sigmoid(torch.randn(*shape)),
    }
    return {name: x.requires_grad_() for name, x in found.items()}


def seconds(run: Callable[[], object]) -> float:
    """The median time of a run, after one to warm up."""
    run()
    times: list[float] = []
    while sum(times) < ENOUGH and len(times) < MOST:
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def measure(form: str, tokens: int, backward: bool) -> dict[str, float]:
    """Time and memory of one case, in this process."""
    op, inputs = archc.load(SPEC).op, arguments(tokens)
    chunk = None if form == LOOP else 64

    def forward() -> torch.Tensor:
        return op(**inputs, chunk=chunk)[0]

    def both() -> None:
        forward().sum().backward()
        for x in inputs.values():
            x.grad = None

    small = arguments(64)
    op(**small, chunk=chunk)[0].sum().backward()  # everything is loaded before memory is looked at
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    if backward:
        found = seconds(both)
    else:
        with torch.no_grad():
            found = seconds(forward)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"seconds": found, "peak_mib": (after - before) / 1024}


def case(form: str, tokens: int, backward: bool) -> dict[str, Any]:
    """One case, in a process of its own."""
    command = [sys.executable, __file__, "--case", form, str(tokens), str(int(backward))]
    made = subprocess.run(command, check=True, capture_output=True, text=True)
    row = {"form": form, "tokens": tokens, "backward": backward, **json.loads(made.stdout)}
    what = "forward + backward" if backward else "forward"
    print(
        f"{form:7} T = {tokens:6}  {what:18}  {row['seconds']:8.4f} s  {row['peak_mib']:8.0f} MiB",
        file=sys.stderr,
    )
    return row


def environment() -> dict[str, str | int]:
    """Where the numbers come from."""
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], check=False, capture_output=True, text=True
    )
    lines = Path("/proc/cpuinfo").read_text().splitlines() if sys.platform == "linux" else []
    names = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return {
        "command": "python benchmarks/eager_chunks.py",
        "processor": next(names, platform.processor()),
        "cores": os.cpu_count() or 0,
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "commit": commit.stdout.strip(),
        "sizes": f"{SPEC}: B = {BATCH}, H = {HEADS}, K = {KEY}, V = {VALUE}, float32, chunk 64",
    }


def ratio(rows: list[dict[str, Any]], backward: bool) -> float:
    """How many times as fast chunks are: the median over rounds, each a loop and then chunks, so
    that a machine that is busy for a while slows both."""
    loops, chunks = (
        [row["seconds"] for row in rows if row["form"] == form and row["backward"] == backward]
        for form in (LOOP, CHUNKS)
    )
    return statistics.median(a / b for a, b in zip(loops, chunks, strict=True))


def both_by_chunks(row: dict[str, Any]) -> bool:
    """Whether a case is forward and backward by chunks: these grow with the tokens alone."""
    return row["form"] == CHUNKS and row["backward"]


def main() -> None:
    """Measure every case; print the ratios, and write everything as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--output", help="where the numbers go, as JSON")
    parser.add_argument("--case", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.case:
        form, tokens, backward = given.case
        print(json.dumps(measure(form, int(tokens), backward == "1")))
        return
    rows = [
        case(form, COMPARED, backward)
        for _ in range(ROUNDS) for backward in (False, True) for form in (LOOP, CHUNKS)
    ]  # fmt: skip
    for backward in (False, True):
        what = "forward + backward" if backward else "forward           "
        print(f"{what} {ratio(rows, backward):6.1f} times as fast as the loop")
    rows += [case(CHUNKS, tokens, True) for tokens in LENGTHS if tokens != COMPARED]
    print("forward + backward by chunks, per token:")
    longest = {row["tokens"]: row for row in rows if both_by_chunks(row)}
    for row in (longest[tokens] for tokens in LENGTHS):
        time, memory = row["seconds"] / row["tokens"] * 1e6, row["peak_mib"] / row["tokens"] * 1024
        print(f"  T = {row['tokens']:6}  {time:6.1f} us  {memory:6.1f} KiB at the peak")
    if given.output:
        Path(given.output).parent.mkdir(parents=True, exist_ok=True)
        data = {"environment": environment(), "rows": rows}
        Path(given.output).write_text(json.dumps(data, indent=1) + "\n")


if __name__ == "__main__":
    main()
