"""The gradients of a token region that several inputs share."""

from __future__ import annotations

import torch

from archc.runtime.tokens import like_those_of, shared_out

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
