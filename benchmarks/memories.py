"""Memories alone, as their users call them, on one GPU: milliseconds forward and with gradients,
the peak of memory, and the kernels that take longest.

    python -m benchmarks.memories -o benchmarks/results/memories.json           # every row
    python -m benchmarks.memories kda gla -o benchmarks/results/memories.json

B 2, T 8192, 32 heads of 128, bfloat16, gates in float32. A row is written as it comes, and rows
that the file has are kept. `archc bench` times the same beside peers, which takes longer.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

import archc
from archc.algebra import cut
from archc.bench.clock import peak
from archc.compile import with_chunks
from archc.ir.sizes import evaluate
from benchmarks.rows import record_rows, timed

SIZES = {"H": 32, "K": 128, "V": 128, "batch": 2, "T#": 8192}
ROWS: Mapping[str, Mapping[str, int]] = {
    "kda": {}, "gla": {}, "gated_delta": {}, "delta": {}, "linear_attention_simple": {},
    "retention": {}, "mamba2": {"P": 128, "N": 128, "G": 32}, "gated_delta_product": {"n": 2},
    "rwkv7": {}, "mlstm": {}, "mesa": {"steps": 30},
}  # fmt: skip
"""Bundled specs, and values of their own arguments."""

UNIT = ("q", "k", "kappa")
"""Of length 1, as the layers make them."""

KERNELS = 8
"""How many are listed."""


def value(name: str, axes: tuple[str, ...], shape: list[int]) -> Tensor:
    """Numbers as a layer would give them: logarithms of decays and weights in float32, what is one
    number a head between 0 and 1."""
    drawn = torch.randn(shape, device="cuda")
    if name.startswith("log_") or name in ("lf", "li"):
        return F.logsigmoid(drawn + 2).clamp(min=-0.6 if name == "log_w" else -torch.inf)
    if "t" not in axes:
        return drawn.abs() + 0.5
    if name in UNIT:
        return F.normalize(drawn, dim=-1).bfloat16()
    return (drawn.sigmoid() if len(shape) <= 3 or name in ("beta", "a") else drawn).bfloat16()


def row(name: str) -> dict[str, Any]:
    """The numbers of one memory."""
    torch.manual_seed(0)
    memory = cut.op(with_chunks(archc.load(name).layer))
    known = {**SIZES, **ROWS[name]}
    inputs = {
        op.name: value(op.name, op.type.names, [int(evaluate(a.size, known)) for a in op.type.axes])
        for _, op in memory.inputs
    }
    leaves = {each: x.requires_grad_() for each, x in inputs.items()}
    op = archc.load(name).op
    slope = torch.randn_like(op(**leaves)[0])

    def forward() -> None:
        with torch.no_grad():
            op(**leaves)

    def both() -> None:
        torch.autograd.grad(op(**leaves)[0], [*leaves.values()], slope)

    both()
    found = {"forward_ms": timed(forward), "both_ms": timed(both), "MiB": peak(both)}
    return {"memory": name, **found, "kernels_us": kernels_of(both)}


def kernels_of(call: Any) -> dict[str, float]:
    """Microseconds of the kernels that take longest, of the profile of three calls."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(3):
            call()
        torch.cuda.synchronize()
    found = {e.key[:80]: e.device_time_total / 3 for e in profile.key_averages()}
    longest = sorted(found, key=lambda each: -found[each])[:KERNELS]
    return {each: round(found[each], 1) for each in longest}


if __name__ == "__main__":
    sys.exit(record_rows("memory", ROWS, row, __doc__))
