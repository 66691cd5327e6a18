"""Time and peak memory of every attention in the bundle as the sequence grows, on one GPU.

    python -m benchmarks.attention_lengths -o benchmarks/results/attention_lengths.json
    python -m benchmarks.attention_lengths fox path -o ...                      # some
    python -m benchmarks.attention_lengths --plot benchmarks/attention_lengths.png -o ...

A whole layer, x [1, T, 1024] in bfloat16, 8 heads of 128: milliseconds forward and with gradients,
and MiB beyond weights and inputs, from 1,024 tokens to 131,072. Lengths double until a call takes
a second or memory ends, which the row then says; what `--seconds` leave no time for is not run.
All layers are compiled side by side before the first is timed. Each length is written as it comes,
and lengths that the file has are not run again.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from math import log2
from pathlib import Path
from typing import Any

import torch

import archc
from archc.bench.clock import peak
from benchmarks.rows import Record, arguments, brief

WIDE = {"d": 1024, "H": 8}
ROWS: dict[str, dict[str, Any]] = {
    "attention": WIDE,
    "transformer": WIDE,
    "gpt_block": WIDE,
    "cross_attention": {**WIDE, "e": 1024},
    "alibi": WIDE,
    "capped_attention": WIDE,
    "window_attention": {**WIDE, "w": 512},
    "mla": {"d": 1024, "H": 8},
    "fox": WIDE,
    "path": WIDE,
    "path_fox": WIDE,
    "nsa": {"d": 1024, "H": 16, "G": 1},
    "dsa": {"d": 1024, "H": 8, "HI": 8},
}
"""The sizes of each layer."""

LENGTHS, PATIENCE_MS = [1024 << i for i in range(8)], 1000.0
LATE = "no time was left"


def point(module: Any, name: str, tokens: int) -> dict[str, Any]:
    """Milliseconds and MiB of one length."""
    d = ROWS[name]["d"]
    kind = {"device": "cuda", "dtype": torch.bfloat16}
    x = torch.randn(1, tokens, d, **kind, requires_grad=True)
    given = [x, torch.randn(1, tokens, d, **kind)] if name == "cross_attention" else [x]
    slope = torch.randn(1, tokens, d, **kind)

    def forward() -> None:
        with torch.no_grad():
            module(*given)

    def both() -> None:
        module.zero_grad(set_to_none=True)
        x.grad = None
        module(*given).backward(slope)

    forward()
    used = peak(both)
    return {"T": tokens, "forward_ms": brief(forward), "both_ms": brief(both), "MiB": used}


def built(name: str) -> Any:
    """The module of a layer."""
    torch.manual_seed(0)
    return archc.load(name).module(device="cuda", dtype=torch.bfloat16, **ROWS[name])


def points(name: str, known: list[int], until: float) -> Iterator[tuple[dict[str, Any], str]]:
    """Every length of one attention that is not known, and at the last one why there is none
    beyond it."""
    module, ended = built(name), ""
    for tokens in (each for each in LENGTHS if each not in known):
        found: dict[str, Any] = {}
        try:
            if time.monotonic() > until:
                ended = LATE
            else:
                found = point(module, name, tokens)
        except torch.cuda.OutOfMemoryError:
            ended = f"no memory for {tokens:,} tokens"
        if found and found["both_ms"] > PATIENCE_MS:
            ended = f"{tokens:,} tokens take more than {PATIENCE_MS / 1000:g} s"
        yield found, ended
        if ended:
            return


def recorded(made: Record, name: str) -> tuple[list[dict[str, Any]], bool]:
    """The lengths of an attention that the file has, and whether it needs no more of them."""
    row = made.like({"layer": name})
    known = row.get("points", [])
    return known, len(known) == len(LENGTHS) or row.get("ended", LATE) not in ("", LATE)


def measure(made: Record, name: str, until: float) -> None:
    """Write the row of an attention, length by length."""
    known, _ = recorded(made, name)
    for found, ended in points(name, [each["T"] for each in known], until):
        known += [found] if found else []
        row = {"layer": name, **ROWS[name], "points": known, "ended": ended}
        if len(known) > 1:
            row["grows"] = {what: growth(known, what) for what in ("both_ms", "MiB")}
        made.add(row)
        print(f"{name:18} {found} {ended}", flush=True)


def compile_all(names: list[str]) -> None:
    """Compile the kernels of all layers, each in its own process: Triton keeps them on disk."""
    command = [sys.executable, "-m", "benchmarks.attention_lengths", "--compile"]
    running = [subprocess.Popen([*command, name]) for name in names]
    for each in running:
        each.wait()


def growth(points: list[dict[str, Any]], what: str) -> float:
    """The power of T with which something grows over the last doubling."""
    return log2(points[-1][what] / points[-2][what])


def plot(file: Path, picture: Path) -> None:
    """MiB and milliseconds over the tokens, a line for each attention."""
    from matplotlib import pyplot

    rows = json.loads(file.read_text(encoding="utf-8"))["rows"]
    rows.sort(key=lambda row: [*ROWS].index(row["layer"]))
    figure, both = pyplot.subplots(1, 2, figsize=(11, 4.6), layout="constrained")
    for axes, what, label in zip(
        both, ("both_ms", "MiB"), ("forward and backward, ms", "peak memory, MiB"), strict=True
    ):
        for i, each in enumerate(rows):
            lengths = [p["T"] for p in each["points"]]
            numbers = [p[what] for p in each["points"]]
            line = "-" if i < 7 else "--"
            axes.plot(lengths, numbers, line, marker=".", label=each["layer"], color=f"C{i % 7}")
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xlabel("tokens")
        axes.set_ylabel(label)
        axes.grid(alpha=0.3)
    both[1].legend(fontsize=8, ncols=1, loc="center left", bbox_to_anchor=(1.0, 0.5))
    figure.savefig(picture, dpi=110)


def main() -> int:
    """Record, or draw what is recorded."""
    begin = time.monotonic()
    if "--compile" in sys.argv:
        name = sys.argv[-1]
        point(built(name), name, 1024)
        return 0
    parser = arguments(__doc__, ROWS)
    parser.add_argument("--plot", type=Path, help="draw what is recorded, and run nothing")
    parser.add_argument("--seconds", type=float, default=3600.0, help="for all; 3600")
    given = parser.parse_args()
    if given.plot:
        plot(given.output, given.plot)
        return 0
    made = Record(given, by=("layer",))
    names = [name for name in given.names if not recorded(made, name)[1]]
    compile_all(names)
    print(f"compiled after {time.monotonic() - begin:.0f} s", flush=True)
    for name in names:
        measure(made, name, begin + given.seconds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
