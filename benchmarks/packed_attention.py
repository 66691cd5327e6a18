"""Causal softmax attention of packed sequences on one GPU: as a layer does it, and by one call for
each length of sequences.

    python -m benchmarks.packed_attention -o benchmarks/results/packed_attention.json

16,384 tokens in bfloat16, cut at random into so many sequences; 32 heads of 128, of which some
share their keys, or whose keys and values differ in length.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from archc.runtime.layers import softmax_attention
from archc.runtime.packed import one_by_one
from archc.runtime.varlen import packed_attention
from benchmarks.layers import peak, record_rows, timed

TOKENS, HEADS = 16_384, 32
SHAPES: Mapping[str, tuple[int, int, int]] = {
    "heads": (32, 128, 128),
    "grouped": (8, 128, 128),
    "latent": (32, 192, 128),
}
"""Heads of keys, and the lengths of keys and values."""

ROWS = {f"{shape}-{n}": (shape, n) for shape in SHAPES for n in (1, 2, 4, 8, 32, 128)}


def cut(count: int) -> list[int]:
    """Borders of so many sequences."""
    places = random.Random(1).sample(range(1, TOKENS), count - 1)
    return [0, *sorted(places), TOKENS]


def row(name: str) -> dict[str, Any]:
    """The numbers of one shape and count."""
    shape, count = ROWS[name]
    groups, K, V = SHAPES[shape]
    torch.manual_seed(0)
    make = partial(torch.randn, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    xs = [make(1, TOKENS, heads, D) for heads, D in ((HEADS, K), (groups, K), (groups, V))]
    borders, slope = torch.tensor(cut(count), device="cuda"), make(1, TOKENS, HEADS, V).detach()
    ways: dict[str, Callable[[], Tensor]] = {
        "": lambda: packed_attention(*xs, borders, causal=True),
        "calls_": lambda: one_by_one(partial(softmax_attention, causal=True), borders, xs, [])[0],
    }
    found: dict[str, Any] = {"cut": name, "K": K, "V": V, "groups": groups, "sequences": count}
    for way, call in ways.items():

        def forward(call: Callable[[], Tensor] = call) -> None:
            with torch.no_grad():
                call()

        def both(call: Callable[[], Tensor] = call) -> None:
            for x in xs:
                x.grad = None
            call().backward(slope)

        found |= {f"{way}forward_ms": timed(forward), f"{way}both_ms": timed(both)}
        found[f"{way}MiB"] = peak(both)
    return found


if __name__ == "__main__":
    sys.exit(record_rows("cut", ROWS, row, __doc__))
