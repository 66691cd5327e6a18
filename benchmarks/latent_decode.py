"""One token of multi-head latent attention that reads a long cache, on one GPU: by kernels whose
rows are heads, and by torch's own attention, for which the cache is laid out anew.

    python -m benchmarks.latent_decode -o benchmarks/results/latent_decode.json

`specs/mla.arch`, DeepSeek-V3's sizes in bfloat16: latents of 512, rotated keys of 64, heads of 128.
Times are those of a CUDA graph. The floor is what the cache takes at the bandwidth of copies, or
the products at the rate of large ones, whichever is longer.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from archc.backends.load import load as loaded
from torch import Tensor

import archc
from archc.compile import text_of
from benchmarks.decode import BANDWIDTH, replayed
from benchmarks.rows import Record, arguments

C, R, K, V = 512, 64, 128, 128
RATE = 7e14
"""Operations a second of large products on an H200."""

SHAPES = [(64, 8192, 128), (64, 8192, 16), (8, 8192, 128), (1, 65536, 128)]
"""Sequences, tokens in the cache, heads."""


def given_to(B: int, S: int, H: int) -> list[Tensor]:
    """The cache, the queries, and the matrices that make keys and values of latents."""
    torch.manual_seed(0)
    normal = partial(torch.randn, device="cuda", dtype=torch.bfloat16)
    cache, queries = [normal(B, S, C), normal(B, S, R)], [normal(B, 1, H, K), normal(B, 1, H, R)]
    return [*cache, *queries, *(normal(C, H, D) * C**-0.5 for D in (K, V))]


def floor(B: int, S: int, H: int) -> float:
    """Seconds that no kernel can do without."""
    return max(2 * B * S * (C + R) / BANDWIDTH, 2 * B * S * H * (2 * C + R) / RATE)


@torch.no_grad()
def measured(module: Any, B: int, S: int, H: int) -> dict[str, Any]:
    """One row: microseconds of a token, and how far it is from float64 on the first sequence."""
    given = given_to(B, S, H)
    few = [x[:1] for x in given[:4]] + given[4:]
    wanted = module.mla_memory_decode(*(x.double() for x in few))
    by_kernels: Callable = module.mla_memory_fold
    found = by_kernels(*few, pos=S - 1).double()
    ours = replayed(lambda: by_kernels(*given, pos=S - 1))
    return {
        "B": B, "S": S, "H": H, "error": float((found - wanted).norm() / wanted.norm()),
        "us": 1e6 * ours, "floor_us": 1e6 * floor(B, S, H), "share": floor(B, S, H) / ours,
        "torch_us": 1e6 * replayed(lambda: module.mla_memory_decode(*given)),
    }  # fmt: skip


def main() -> int:
    """Every shape."""
    made = Record(arguments(__doc__).parse_args())
    module = loaded(text_of(archc.load("mla").layer, "triton"), "mla_decoded")
    for shape in SHAPES:
        made.add(measured(module, *shape))
        print(json.dumps(made.data["rows"][-1]), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
