"""Whole layers as a user calls them, on one GPU: milliseconds forward and with gradients, and the
peak of memory beyond weights and inputs.

    python -m benchmarks.layers -o benchmarks/results/layers.json            # every row
    python -m benchmarks.layers attention kda -o benchmarks/results/layers.json

x is [B, T, d] in bfloat16. A row is written as it comes, and rows that the file has are kept. Of
some layers there is fla's of the same sizes, of `transformer` torch's by torch.compile.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import archc
from archc.bench.clock import peak
from archc.bench.drawn import load_file
from archc.bench.record import peers_file
from benchmarks.rows import kernels, passes, record_rows, timed

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
    "kimi_kda": ((2, 8192), {"d": 2304, "H": 32, "K": 128, "V": 128, "r": 128}),
}
"""Batch, tokens, and the sizes of a layer."""

FLA = {f"{name}_fla": name for name in ("kda", "gated_delta", "gla", "kimi_kda")}
"""Layers that fla has too."""

TORCH = "transformer_torch"
"""The block of `transformer` as one writes it in torch, by torch.compile."""

SPECS = {"kimi_kda": "kda"}
"""Where a row has another name than its spec."""


class Block(nn.Module):
    """Attention with rotary positions by torch's kernel, then SwiGLU, each on a normalised input
    and added to it."""

    def __init__(self, d: int, H: int):
        super().__init__()
        f = -(-8 * d // 3 // 256) * 256
        self.heads, self.wide = H, d // H
        self.n1, self.n2 = nn.RMSNorm(d, eps=1e-6), nn.RMSNorm(d, eps=1e-6)
        self.qkv, self.o = nn.Linear(d, 3 * d, bias=False), nn.Linear(d, d, bias=False)
        self.gate, self.up = nn.Linear(d, f, bias=False), nn.Linear(d, f, bias=False)
        self.down = nn.Linear(f, d, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """x [B, T, d] -> [B, T, d]"""
        q, k, v = (
            y.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for y in self.qkv(self.n1(x)).chunk(3, -1)
        )
        rate = 10000.0 ** -(torch.arange(0, self.wide, 2, device=x.device) / self.wide)
        angle = torch.arange(x.shape[1], device=x.device)[:, None] * rate
        q, k = (turned(y, angle.cos().to(y.dtype), angle.sin().to(y.dtype)) for y in (q, k))
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(y.transpose(1, 2).flatten(2))
        y = self.n2(x)
        return x + self.down(nn.functional.silu(self.gate(y)) * self.up(y))


def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """The two halves of x turned by angles."""
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


def made(name: str, sizes: Mapping[str, Any]) -> nn.Module:
    """The layer; fla's gives a tuple."""
    if name == TORCH:
        compiled: nn.Module = torch.compile(Block(**sizes).to("cuda", torch.bfloat16))
        return compiled
    spec = FLA.get(name, name)
    spec = SPECS.get(spec, spec)
    if name not in FLA:
        return archc.load(spec).module(device="cuda", dtype=torch.bfloat16, **sizes)
    peers = load_file(Path(peers_file()), "archc_bench_peers")
    return peers.LAYERS["fla"][spec](sizes).to("cuda", torch.bfloat16)


def row(name: str) -> dict[str, Any]:
    """The numbers of one layer."""
    (B, T), sizes = ROWS["transformer" if name == TORCH else FLA.get(name, name)]
    module = made(name, sizes)
    x = torch.randn(B, T, sizes["d"], device="cuda", dtype=torch.bfloat16, requires_grad=True)
    forward, both = passes(module, x)
    start = time.monotonic()
    both()
    torch.cuda.synchronize()
    first = time.monotonic() - start
    times = {"forward_ms": timed(forward), "both_ms": timed(both)}
    found = {"layer": name, "B": B, "T": T, **sizes, **times, "MiB": peak(both), "first_s": first}
    return found | {"kernels": kernels(both, 20)}


if __name__ == "__main__":
    sys.exit(record_rows("layer", (*ROWS, *FLA, TORCH), row, __doc__))
