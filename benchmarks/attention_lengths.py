"""Time and peak memory of every attention in the bundle as the sequence grows, on one GPU.

    python -m benchmarks.attention_lengths -o benchmarks/results/attention_lengths.json
    python -m benchmarks.attention_lengths fox path -o ...                      # some
    python -m benchmarks.attention_lengths --plot benchmarks/attention_lengths.png -o ...

A whole layer, x [1, T, 1024] in bfloat16, 8 heads of 128: milliseconds forward and with gradients,
and MiB beyond weights and inputs, from 1,024 tokens to 131,072. Lengths double until a call takes
three seconds or memory ends, which the row then says. A row is written as it comes.
"""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser
from math import log2
from pathlib import Path
from typing import Any

import torch

import archc
from benchmarks.rows import peak, record_rows, timed

WIDE = {"d": 1024, "H": 8}
ROWS: dict[str, dict[str, int]] = {
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

LONGEST, PATIENCE_MS = 131072, 3000.0


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

    both()
    return {"T": tokens, "forward_ms": timed(forward), "both_ms": timed(both), "MiB": peak(both)}


def row(name: str) -> dict[str, Any]:
    """Every length of one attention, and why there is none beyond the last."""
    torch.manual_seed(0)
    module = archc.load(name).module(device="cuda", dtype=torch.bfloat16, **ROWS[name])
    points: list[dict[str, Any]] = []
    ended = ""
    for tokens in (1024 << i for i in range(LONGEST.bit_length() - 10)):
        try:
            points.append(point(module, name, tokens))
        except torch.cuda.OutOfMemoryError:
            ended = f"no memory for {tokens:,} tokens"
            break
        print(f"{name:18}{tokens:8,} {points[-1]}", flush=True)
        if points[-1]["both_ms"] > PATIENCE_MS:
            ended = f"{tokens:,} tokens take more than {PATIENCE_MS / 1000:g} s"
            break
    last = {key: points[-1][key] for key in ("forward_ms", "both_ms", "MiB")}
    grows = {what: growth(points, what) for what in ("both_ms", "MiB")}
    return {"layer": name, **ROWS[name], "points": points, "ended": ended, "grows": grows, **last}


def growth(points: list[dict[str, Any]], what: str) -> float:
    """The power of T with which something grows over the last doubling."""
    return log2(points[-1][what] / points[-2][what])


def plot(recorded: Path, picture: Path) -> None:
    """MiB and milliseconds over the tokens, a line for each attention."""
    from matplotlib import pyplot

    rows = json.loads(recorded.read_text(encoding="utf-8"))["rows"]
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
    if "--plot" not in sys.argv:
        return record_rows("layer", ROWS, row, __doc__ or "")
    parser = ArgumentParser(description="Draw what is recorded.")
    parser.add_argument("--plot", type=Path, required=True)
    parser.add_argument("-o", "--output", type=Path, required=True)
    given = parser.parse_args()
    plot(given.output, given.plot)
    return 0


if __name__ == "__main__":
    sys.exit(main())
