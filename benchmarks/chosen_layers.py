"""Tokens and blocks that readers choose, with all that choosing takes, on one GPU: milliseconds
forward and with gradients, the peak of memory, and what takes longest of the latter.

    python -m benchmarks.chosen_layers -o benchmarks/results/chosen_layers.json        # every row
    python -m benchmarks.chosen_layers nsa nsa_fla dsa_16_65536 mla_16_65536 -o ...

`nsa`: compressed and chosen blocks of 64 tokens, 16 a reader, and gates, q [2, 8192, 64, 128], k
and v [2, 8192, 4, 128], all in bfloat16; `nsa_fla`: fla's parallel_nsa of the same. `dsa_H_T` and
`mla_H_T`: whole layers at d 2048, one sequence of T tokens and H heads, 2,048 chosen or all read.
A row is written as it comes, and rows that the file has are kept.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import archc
from archc.bench.clock import peak
from benchmarks.rows import brief, kernels, record_rows

NSA = """layer Sparse(H, G, K, V, size = 64, n = 16):
    input q[H, K], k[G, K], v[G, V], near[H], far[H]
    blocks b of size every size:
        k_c = mean[size](k[b])
        v_c = mean[size](v[b])

    attend b ending <= t over H grouped G:
        p     = softmax(q[t].T @ k_c[b] / sqrt(K))
        o_cmp = p @ v_c[b]
    chosen = top(n, sum[H in G](p) on blocks of size always first and last 2)

    attend s <= t in chosen over H grouped G:
        o_slc = softmax(q[t].T @ k[s] / sqrt(K)) @ v[s]

    output o = far * o_cmp + near * o_slc
"""
B, T, H, G, D = 2, 8192, 64, 4, 128
LENGTHS = ((16, 8192), (16, 65536), (128, 16384), (128, 65536))
ROWS = ["nsa", "nsa_fla", *(f"{what}_{h}_{t}" for h, t in LENGTHS for what in ("dsa", "mla"))]

Made = tuple[Callable[..., Tensor], list[Tensor], list[Tensor]]
"""A function, what it is given, and what gradients are wanted of."""


def by_fla(q: Tensor, k: Tensor, v: Tensor, near: Tensor, far: Tensor) -> Tensor:
    """fla's kernels."""
    from fla.ops.nsa import parallel_nsa

    return parallel_nsa(q, k, v, far, near, block_counts=16, block_size=64)


def of_blocks(name: str) -> Made:
    """NSA without projections and window."""
    kind = {"device": "cuda", "dtype": torch.bfloat16}
    shapes = ((H, D), (G, D), (G, D), (H,), (H,))
    xs = [torch.randn(B, T, *shape, **kind).requires_grad_() for shape in shapes]
    if name == "nsa_fla":
        return by_fla, xs, xs
    return archc.parse(NSA).module(H=H, G=G, K=D, V=D, **kind), xs, xs


def of_layer(name: str) -> Made:
    """A whole layer of latents."""
    spec, heads, tokens = name.split("_")
    kind = {"device": "cuda", "dtype": torch.bfloat16}
    module = archc.load(spec).module(d=2048, H=int(heads), **kind)
    x = torch.randn(1, int(tokens), 2048, **kind).requires_grad_()
    return module, [x], [x, *(p for p in module.parameters() if p.requires_grad)]


def row(name: str) -> dict[str, Any]:
    """The numbers of one row."""
    torch.manual_seed(0)
    call, xs, learned = (of_blocks if name.startswith("nsa") else of_layer)(name)
    with torch.no_grad():
        slope = torch.randn_like(call(*xs))

    def forward() -> None:
        with torch.no_grad():
            call(*xs)

    def both() -> None:
        torch.autograd.grad(call(*xs), learned, slope, allow_unused=True)

    both()
    found = {"what": name, "forward_ms": brief(forward), "both_ms": brief(both), "MiB": peak(both)}
    return found | {"kernels": kernels(both, 25), "kernels_forward": kernels(forward, 15)}


if __name__ == "__main__":
    sys.exit(record_rows("what", ROWS, row, __doc__))
