"""Whole layers as a user calls them, on one GPU: milliseconds forward and with gradients, and the
peak of memory beyond weights and inputs.

    python -m benchmarks.layers -o benchmarks/results/layers.json            # every row
    python -m benchmarks.layers attention kda -o benchmarks/results/layers.json

x is [B, T, d] in bfloat16. A row is written as it comes, and rows that the file has are kept.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import Any

import torch

import archc
from benchmarks.rows import peak, record_rows, timed

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


if __name__ == "__main__":
    sys.exit(record_rows("layer", ROWS, row, __doc__))
