"""Which ranges of an `attend` reach no later token, which have to say that they do, and windows."""

from __future__ import annotations

import pytest
import sympy
import torch

from archc.dims import at
from archc.ir import layer as ir
from tests.elaborate.forms import T, agree, randn
from tests.elaborate.specs import codes, layer, outputs, refusal

PAST = {
    "s <= t": None, "s < t": None, "s < t + 1": None, "t >= s": None, "s - t <= 0": None,
    "s <= t - 1": None, "0 <= s <= t": None, "s == t": 1, "s + w <= t + w": None,
    "t - w < s <= t": 3, "t >= s > t - w": 3, "t - w <= s <= t - 1": 4, "s <= t < s + w": 3,
}  # fmt: skip
AHEAD = [
    "s <= t + 1", "t <= s", "s < t + 2", "t - w < s < t + w", "t - s < w", "s <= s", "s <= w",
    "s % 2 == t % 2", "s != t", "t - 3 < s", "s <= 2 * t", "s <= t + w - d",
]  # fmt: skip
BLOCKS = {
    "b ending <= t": True, "b ending < t": True, "2 * b + 1 <= t": True, "b ending <= t - w": True,
    "b <= t": False, "b ending <= t + 1": False, "b ending >= t": False, "2 * b <= t": False,
}  # fmt: skip


def spec(range: str, head: str = "", read: str = "s") -> str:
    return (
        f"layer L(d, w = 3):\n    input x[d]\n{head}    attend {range}:\n"
        f"        o = softmax(x[t].T @ {'x' if read == 's' else 'k'}[{read}]) @ "
        f"{'x' if read == 's' else 'k'}[{read}]\n    output o\n"
    )


IN_BLOCKS = "    blocks b of 2 every 2:\n        k = mean[2](x[b])\n"


def pair_of(text: str) -> ir.Attend:
    return next(node.op for node in layer(text).graph if isinstance(node.op, ir.Attend))


@pytest.mark.parametrize("range", PAST)
def test_a_range_of_the_past(range: str) -> None:
    """It is known how many of the latest tokens are read at most, where that is bounded."""
    attend, window = pair_of(spec(range)), PAST[range]
    assert attend.causal
    assert window is None or at(attend.window, {"w": sympy.Integer(3)}) == window


@pytest.mark.default("t - w <= s <= t - 1")
@pytest.mark.parametrize("range", ["s - t <= 0", "t - w <= s <= t - 1", "s <= t < s + w"])
def test_numbers_of_a_range_of_the_past(range: str) -> None:
    """Read whole, and going on token by token with no more than the window kept."""
    x, t, s = randn(3), torch.arange(T)[:, None], torch.arange(T)
    allowed = {
        "s - t <= 0": s <= t,
        "t - w <= s <= t - 1": (t - 3 <= s) & (s < t),
        "s <= t < s + w": (s <= t) & (t < s + 3),
    }
    score = (x @ x.mT).masked_fill(~allowed[range], -torch.inf)
    agree(spec(range), {"x": x}, score.softmax(2).nan_to_num(0) @ x, d=3)


@pytest.mark.parametrize("range", AHEAD)
def test_a_later_token_is_read_only_where_the_spec_says_so(range: str) -> None:
    assert codes(spec(range)) == ["E0308"]
    assert f"attend all {range}" in refusal(spec(range))
    assert not pair_of(spec(f"all {range}")).causal


@pytest.mark.parametrize("range", BLOCKS)
def test_a_block_is_of_the_past_once_its_last_token_is(range: str) -> None:
    text = spec(range, IN_BLOCKS, "b")
    assert codes(text) == ([] if BLOCKS[range] else ["E0308"])
    assert pair_of(spec(f"all {range}", IN_BLOCKS, "b")).causal == BLOCKS[range]


def test_both_ways_within_a_window() -> None:
    found, given = outputs(spec("all t - w < s < t + w"), d=3)
    x, near = given["x"], (torch.arange(T)[:, None] - torch.arange(T)).abs() < 3
    expected = (x @ x.mT).masked_fill(~near, -torch.inf).softmax(2) @ x
    torch.testing.assert_close(found, expected)


def test_another_sequence_has_no_later_tokens() -> None:
    head = "layer L(d):\n    input x[d]\n    input c[d] along m\n"
    for range in ("all m", "m <= t", "m <= t + 1"):
        text = (
            f"{head}    attend {range}:\n        o = softmax(x[t].T @ c[m]) @ c[m]\n    output o\n"
        )
        assert codes(text) == []
