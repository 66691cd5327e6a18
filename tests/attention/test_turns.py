"""Few tokens read: heads that share them take turns."""

from __future__ import annotations

import pytest
import torch

from archc.lowering.attention_turns import in_turns, takes_turns
from archc.runtime import folds
from archc.verify.fold_trial import distance
from tests.attention.cases import PLAIN, launch, spec
from tests.attention.test_folds import SCORES, SIZES
from tests.attention.test_heads import LOOSE

SINK = spec(f"{PLAIN} - slope * (t - s), sink", "t - w < s <= t", groups=True,
            params="sink[H], slope[H]", sizes="w")  # fmt: skip
GROUPED = {
    "capped": (*SCORES["capped"], 40),
    "all heads share": (LOOSE, {}, 50),
    "a sink, a window, a slope": (SINK, {"G": 2, "w": 20}, 37),
    "unnormalised": (spec(read="({}) @ v[s]", groups=True), {"G": 1}, 33),
    "a distance": (
        spec("-sum[K]((q[t] - k[s]) ** 2) / 9", groups=True),
        {"G": 2},
        33,
    ),
    "gated": (spec(f"{PLAIN} + a[t] * b[s]", groups=True, inputs="a[H], b[G]"), {"G": 2}, 64),
}


@pytest.mark.parametrize("name", GROUPED)
def test_each_head_finds_what_it_reads(name: str):
    text, sizes, T = GROUPED[name]
    case = launch(text, T, **SIZES, **sizes)
    case.block = 64  # so many tokens stand on chip
    wanted = case.values(*case.fold.nodes)
    found = case.interpreted(in_turns(case.fold), case.sources())
    for result, x in zip(case.made, wanted, strict=True):
        assert distance(found[result], case.as_made(x.detach(), result)) < 1e-12
    if case.fold.softmax:
        assert distance(found["lse"], case.forward()["lse"].double()) < 1e-12


def test_what_differs_by_heads_is_loaded_for_each_block():
    for name in ("plain", "forgetting", "a table by distance"):
        assert not takes_turns(launch(SCORES[name][0], 4, **SIZES, **SCORES[name][1]).fold)
    keys = spec(f"{PLAIN} + b[s]", groups=True, inputs="b[H]")
    assert not takes_turns(launch(keys, 4, **SIZES, G=2).fold)
    many = spec(f"{PLAIN} + p[t].T @ m[s]", groups=True, inputs="p[H, R], m[G, R]", sizes="R")
    assert not takes_turns(launch(many, 4, **SIZES, G=2, R=5).fold), "no room"
    assert takes_turns(launch(LOOSE, 4, **SIZES).fold)


def test_turns_are_taken_where_programs_fill_a_gpu(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(folds, "processors_of", lambda device: 132)
    device = torch.device("cuda")

    def blocks(readers: int, read: int, groups: int, *dims: int, dtype: torch.dtype):
        return folds.turn_blocks(dtype, readers, read, groups, device, *dims)

    half, wide = torch.bfloat16, torch.float32
    found = blocks(8192, 128, 8, 128, 128, dtype=half)
    assert found is not None and found[1] == 128
    assert blocks(8192, 129, 8, 128, 128, dtype=half) is None, "no room"
    assert blocks(8192, 128, 8, 160, 128, dtype=half) is None, "no room"
    assert blocks(8192, 128, 8, 64, 64, dtype=wide) is None, "no room"
    assert blocks(1024, 128, 8, 128, 128, dtype=half) is None, "few programs"
