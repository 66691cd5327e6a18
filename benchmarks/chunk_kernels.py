"""Times of every kernel of recurrences, forward and backward, on one GPU.

    python -m benchmarks.chunk_kernels kda gla -o chunk_kernels.json
    python -m benchmarks.chunk_kernels kda gla -o new.json --beside old.json

Each spec's memory runs at one size with values as `tests/gpu` draws them; times are of a profile,
by the names of kernels. `--beside` is the file of another run: kernels that differ are compared by
their names.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

from benchmarks.rows import Record, arguments
from tests.gpu.cases import Case
from tests.gpu.measure import run
from tests.gpu.memories import memories
from tests.gpu.values import values_for

SIZES = {"B": 2, "T": 8192, "H": 32, "K": 128, "V": 128}
SMALLER = {"H": 2048, "K": 16, "V": 16}
"""Sizes where `H` stands for the channels of a selective scan, and `K` for its states."""

CHANNELS = ("mamba", "ssm_selective")
TURNS = 5


def profiled(spec: str) -> dict[str, float]:
    """Microseconds of each kernel of a spec's memory, forward and backward."""
    sizes = {**SIZES, **(SMALLER if spec in CHANNELS else {})}
    (memory, *_) = memories(spec)
    values = values_for(memory, Case(spec, **sizes), "cuda")
    for _ in range(3):
        run(memory, values, 64)
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(TURNS):
            run(memory, values, 64)
        torch.cuda.synchronize()
    found = {e.key: e.device_time_total / TURNS for e in profile.key_averages()}
    return {name: time for name, time in found.items() if time and "kernels_" in name}


def table(times: dict[str, float], beside: dict[str, float]) -> list[str]:
    """A line a kernel, the slowest first, and one for all of them."""
    lines = []
    for name, time in sorted(times.items(), key=lambda each: -each[1]):
        other = beside.get(name)
        told = "" if other is None else f"{other:10.1f} {time / other:6.2f}"
        lines.append(f"{name:56} {time:10.1f} {told}")
    total, before = sum(times.values()), sum(beside.values())
    told = f"{before:10.1f} {total / before:6.2f}" if before else ""
    return [*lines, f"{'all':56} {total:10.1f} {told}"]


def main() -> int:
    """Every spec."""
    parser = arguments(__doc__)
    parser.add_argument("specs", nargs="+")
    parser.add_argument("--beside", type=Path, help="the file of another run")
    given = parser.parse_args()
    made = Record(given, sizes=SIZES, kernels={})
    other = json.loads(given.beside.read_text(encoding="utf-8")) if given.beside else {}
    for spec in given.specs:
        made.data["kernels"][spec] = profiled(spec)
        beside = other.get("kernels", {}).get(spec, {})
        print("\n".join([spec, *table(made.data["kernels"][spec], beside)]), flush=True)
        made.write()
    return 0


if __name__ == "__main__":
    sys.exit(main())
