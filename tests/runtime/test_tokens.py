"""Token regions as they run: their launches, and the gradients that several inputs share."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from archc.runtime import tokens
from archc.runtime.tokens import (
    EACH,
    Learned,
    launch_tokens,
    like_those_of,
    shared_out,
    tokens_apart,
)

LEARNS = {"x": "", "y": "x", "g": "", "z": "0"}


def test_each_input_has_its_share_in_its_own_dtype() -> None:
    """`y` has that of `x`, `z` that of the first result; `c` has none."""
    x, y, z = (torch.zeros(2, dtype=kind) for kind in (torch.bfloat16, torch.float32, torch.half))
    given, slope = (x, torch.zeros(3), y, torch.zeros(1), z), torch.tensor([0.5, 3.0])
    made = (torch.tensor([1 / 3, 2.0]), torch.ones(1))
    ds = shared_out([*"xcygz"], LEARNS, given, [slope], made)
    assert [None if d is None else d.dtype for d in ds] == [
        torch.bfloat16, None, torch.float32, torch.float32, torch.float16,
    ]  # fmt: skip
    assert torch.equal(ds[2], made[0]) and torch.equal(ds[4], slope.half())
    alike = shared_out(["x", "y"], {"x": "", "y": "x"}, (y, y), [], made[0])
    assert alike[0] is alike[1], "no copy"


def test_room_is_as_wide_as_the_widest_that_shares_it() -> None:
    x, y = torch.zeros(2, 3, dtype=torch.bfloat16), torch.zeros(2, 3)
    given = {"x": x, "c": x, "y": y, "g": torch.zeros(4).half(), "z": x}
    d_x, d_g = like_those_of([*given], LEARNS, *given.values(), 0.1)
    assert (d_x.dtype, d_x.shape, d_g.dtype) == (torch.float32, (2, 3), torch.float16)


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[tuple]:
    """Launches, which write ones, on a GPU of two processors."""
    found: list[tuple] = []

    def launch(kernel: Any, programs: int, given: list, *rest: Any) -> None:
        found.append((kernel, programs, *rest))
        for x in given:
            if isinstance(x, torch.Tensor) and x.dtype == torch.float32:
                x.fill_(1)

    monkeypatch.setattr(tokens, "launch_kernel", launch)
    monkeypatch.setattr(tokens, "processors_of", lambda device: 2)
    tokens.tiles_of.cache_clear()
    return found


def test_programs_share_out_tokens_and_a_dim(launched: list[tuple]) -> None:
    """100 tokens by 16, 300 columns by 256, 3 heads, 2 sequences; float32 in blocks of (K, 256)."""
    x = torch.zeros(2, 100, 3, 300, dtype=torch.bfloat16)
    fixed = {"H": 3, "K": 300, "B_K": (300, 256)}
    assert (
        launch_tokens("kernel", (2, 100, 3, 2), [*tokens_apart(x), x], [100, 0.5], fixed, 4096)
        is None
    )
    constants = {"BLOCK_T": 16, "H": 3, "K": 300, "B_K": 256}
    options = {"num_warps": 4, "num_stages": 2}
    assert launched == [("kernel", 2 * 7 * 3 * 2, [100, 0.5], constants, options)]
    assert [*launched[0][3]] == [*constants], "in the order of the kernel's arguments"


def test_what_programs_sum_is_added_up(launched: list[tuple]) -> None:
    """48 programs of one block of 8 tokens each, of which one does 3; each writes ones."""
    x, gain = torch.zeros(4, 96, 128), torch.zeros(128, dtype=torch.bfloat16)
    given = [None, x, Learned(x, dtype=torch.float64), Learned(gain, (0, 1))]
    d_x, d_gain = launch_tokens(
        "kernel", (4, 96), given, [96, EACH], {"K": 128, "B_K": (128,)}, 1024, 4
    )
    assert launched[0][1:3] == (4 * 4, [96, 3]) and launched[0][4]["num_warps"] == 4
    assert (d_x.shape, d_x.dtype) == (x.shape, torch.float64)
    assert (d_gain.dtype, d_gain.unique().tolist()) == (torch.bfloat16, [16.0])


def test_a_walk_does_its_tokens_one_after_the_other(launched: list[tuple]) -> None:
    """A tile of one token has more numbers than its blocks, if that is said."""
    x = torch.zeros(1, 4096, 16)
    fixed = {"K": 16, "B_K": (16,)}
    launch_tokens("kernel", (1, 4100), [x], [4096, 4100, EACH], fixed, 512, turns=8)
    launch_tokens("kernel", (1, 4100), [x], [4096, 4100, EACH], fixed, 512, turns=8, tile=64)
    (_, few, counts, constants, _), (_, more, _, others, _) = launched
    assert (counts, constants["BLOCK_T"], few) == ([4096, 4100, 4], 32, -(-4100 // 128))
    assert (others["BLOCK_T"], more) == (8, -(-4100 // 64))
