"""Attention of packed sequences on one GPU: as a layer does it, and by one call for each length of
sequences.

    python -m benchmarks.packed_attention -o benchmarks/results/packed_attention.json

16,384 tokens in bfloat16, cut at random into so many sequences: causal softmax attention with 32
heads of 128, of which some share their keys, or whose keys and values differ in length; and whole
layers whose scores are others, d = 2048 in 16 heads.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

import archc
from archc.bench.clock import peak
from archc.runtime.layers import softmax_attention
from archc.runtime.packed import one_by_one
from archc.runtime.varlen import packed_attention
from benchmarks.rows import record_rows, timed

TOKENS, HEADS = 16_384, 32
SHAPES: Mapping[str, tuple[int, int, int]] = {
    "heads": (32, 128, 128),
    "grouped": (8, 128, 128),
    "latent": (32, 192, 128),
}
"""Heads of keys, and the lengths of keys and values."""

LAYERS = ("capped_attention", "alibi", "window_attention", "fox")
D, H = 2048, 16

ROWS = {f"{shape}-{n}": (shape, n) for shape in SHAPES for n in (1, 2, 4, 8, 32, 128)}
ROWS |= {f"{layer}-{n}": (layer, n) for layer in LAYERS for n in (1, 8, 64, 256)}


Ways = tuple[dict[str, int], list[Tensor], Mapping[str, Callable[[], Tensor]]]


def cut(count: int) -> list[int]:
    """Borders of so many sequences."""
    places = random.Random(1).sample(range(1, TOKENS), count - 1)
    return [0, *sorted(places), TOKENS]


def row(name: str) -> dict[str, Any]:
    """The numbers of one shape or layer, and count."""
    what, count = ROWS[name]
    torch.manual_seed(0)
    borders = torch.tensor(cut(count), device="cuda")
    sizes, xs, ways = (of_layer if what in LAYERS else of_shape)(what, borders)
    with torch.no_grad():
        slope = torch.randn_like(ways[""]())
    found: dict[str, Any] = {"cut": name, **sizes, "sequences": count}
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


def of_shape(shape: str, borders: Tensor) -> Ways:
    """Softmax attention: its sizes, what learns, and both ways to do it."""
    groups, K, V = SHAPES[shape]
    make = partial(torch.randn, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    xs = [make(1, TOKENS, heads, D) for heads, D in ((HEADS, K), (groups, K), (groups, V))]
    each = partial(softmax_attention, causal=True)
    ways = {
        "": lambda: packed_attention(*xs, borders, causal=True),
        "calls_": lambda: one_by_one(each, borders, xs, [])[0],
    }
    return {"K": K, "V": V, "groups": groups}, xs, ways


def of_layer(name: str, borders: Tensor) -> Ways:
    """A whole layer."""
    module = archc.load(name).module(d=D, H=H, device="cuda", dtype=torch.bfloat16)
    x = torch.randn(1, TOKENS, D, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    ways = {
        "": lambda: module(x, cu_seqlens=borders),
        "calls_": lambda: one_by_one(module, borders, [x], [])[0],
    }
    return {"d": D, "H": H}, [x, *module.parameters()], ways


if __name__ == "__main__":
    sys.exit(record_rows("cut", ROWS, row, __doc__))
