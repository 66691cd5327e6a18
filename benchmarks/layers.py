"""Whole layers as a user calls them, on one GPU: milliseconds forward and with gradients, and the
peak of memory beyond weights and inputs.

    python -m benchmarks.layers -o benchmarks/results/layers.json            # every row
    python -m benchmarks.layers attention kda -o benchmarks/results/layers.json

x is [B, T, d] in bfloat16. A row is written as it comes, and rows that the file has are kept.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import torch
import triton

import archc
from archc.bench.record import record

WIDE = {"d": 4096, "H": 32}
ROWS: Mapping[str, tuple[tuple[int, int], dict[str, int]]] = {
    "attention": ((2, 4096), WIDE),
    "transformer": ((2, 4096), WIDE),
    "mla": ((1, 4096), WIDE),
    "capped_attention": ((2, 4096), WIDE),
    "fox": ((2, 4096), WIDE),
    "kda": ((2, 8192), {**WIDE, "K": 128, "V": 128, "r": 128}),
    "gated_delta": ((2, 8192), {**WIDE, "K": 128, "V": 128}),
    "gla": ((2, 8192), {**WIDE, "K": 128, "V": 128}),
    "mlstm": ((2, 8192), WIDE),
    "mamba": ((2, 8192), {"d": 2048}),
    "lstm": ((16, 1024), {"d": 1024, "D": 1024}),
    "slstm": ((16, 1024), {"d": 2048, "H": 4}),
}
"""Batch, tokens, and the sizes of a layer."""


def row(name: str) -> dict[str, Any]:
    """The numbers of one layer."""
    (B, T), sizes = ROWS[name]
    module = archc.load(name).module(device="cuda", dtype=torch.bfloat16, **sizes)
    x = torch.randn(B, T, sizes["d"], device="cuda", dtype=torch.bfloat16, requires_grad=True)
    slope = torch.randn_like(module(x))

    def forward() -> None:
        with torch.no_grad():
            module(x)

    def both() -> None:
        module.zero_grad(set_to_none=True)
        x.grad = None
        module(x).backward(slope)

    start = time.monotonic()
    both()
    torch.cuda.synchronize()
    first = time.monotonic() - start
    times = {"forward_ms": timed(forward), "both_ms": timed(both)}
    return {"layer": name, "B": B, "T": T, **sizes, **times, "MiB": peak(both), "first_s": first}


def timed(call: Callable[[], None]) -> float:
    """Milliseconds: the median of some tens."""
    return triton.testing.do_bench(call, warmup=20, rep=150, return_mode="median")


def peak(call: Callable[[], None]) -> float:
    """MiB that a call needs beyond what stands there: gradients and what is saved."""
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / 2**20


def record_rows(what: str, rows: Collection[str], row: Callable[[str], dict], doc: str) -> int:
    """The command line of a script that times rows, each of a `what`: those that are asked for,
    written as they come; other rows of the file stay."""
    parser = argparse.ArgumentParser(description=doc.split("\n\n", maxsplit=1)[0])
    parser.add_argument("names", nargs="*", default=list(rows), help=", ".join(rows))
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--commit", help="where this is a copy without git: what it is a copy of")
    given = parser.parse_args()
    if unknown := [name for name in given.names if name not in rows]:
        parser.error(f"no row for {', '.join(unknown)}")
    data = record(["python", "-m", f"benchmarks.{Path(sys.argv[0]).stem}", *sys.argv[1:]], None)
    data["commit"] = given.commit or data["commit"]
    data["versions"] |= {"torch": torch.__version__, "triton": triton.__version__}
    data |= {"device": torch.cuda.get_device_name(), "rows": []}
    if given.output.exists():
        data["rows"] = json.loads(given.output.read_text(encoding="utf-8"))["rows"]
    for name in given.names:
        found = row(name)
        data["rows"] = [each for each in data["rows"] if each[what] != name] + [found]
        print(
            f"{name:24} forward {found['forward_ms']:8.3f} ms, with gradients"
            f" {found['both_ms']:8.3f} ms, {found['MiB']:7.0f} MiB",
            flush=True,
        )
        given.output.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(record_rows("layer", ROWS, row, __doc__))
