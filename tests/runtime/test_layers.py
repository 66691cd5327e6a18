"""Functions that generated layers call, against the same written out."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from archc.runtime.layers import block_tokens, combined_between
from archc.runtime.selfcheck import fill
from archc.runtime.steps import step_fits


@pytest.mark.parametrize("rest", [(), (3,), (3, 2)])
@pytest.mark.parametrize("readers", [1, 3, 5])
@pytest.mark.parametrize(
    ("cumulative", "whole"), [(torch.cumsum, torch.sum), (torch.cumprod, torch.prod)]
)
def test_what_is_between_two_tokens(
    cumulative: Callable[..., Tensor],
    whole: Callable[..., Tensor],
    readers: int,
    rest: tuple[int, ...],
) -> None:
    """The tokens after s up to the reader, and nothing where s is no earlier than the reader."""
    x = torch.randn(2, 5, *rest, dtype=torch.float64)
    found = combined_between(x, readers, cumulative)
    assert found.shape == (2, readers, 5, *rest)
    for row, t in enumerate(range(5 - readers, 5)):
        for s in range(5):
            wanted = whole(x[:, s + 1 : t + 1], 1) if s < t else whole(x[:, :0], 1)
            torch.testing.assert_close(found[:, row, s], wanted)


@pytest.mark.parametrize("share", [1.0, 0.25])
def test_parameters_of_an_example_lie_in_their_range(share: float) -> None:
    """In so much of it around its middle, and nearly up to its ends."""
    layer = fill(nn.Linear(40, 30), {"Linear.weight": (2.0, 6.0)}, share)
    for parameter, middle, half in ((layer.weight, 4.0, 2.0), (layer.bias, 0.0, 0.5)):
        off = (parameter - middle).abs().max() / (half * share)
        assert 0.8 < off <= 1


def test_room_of_a_program_that_takes_steps() -> None:
    """Numbers of states of twice the 64 K registers; weights in 227 KB, in float32 twice."""
    assert step_fits(131_072, 0, 0, torch.float32) and not step_fits(131_073, 0, 0, torch.float32)
    free = (227 - 16) * 1024
    for dtype, each in ((torch.bfloat16, 2), (torch.float32, 8)):
        assert step_fits(1, free // each, 0, dtype) and not step_fits(1, free // each, 1, dtype)


@pytest.mark.parametrize("seen", [0, 1])
def test_tokens_that_later_blocks_need_are_no_view_of_those_given(seen: int):
    given = torch.randn(1, 5, 2)
    blocks, left = block_tokens(given, given.new_ones(1, seen, 2), 2, 2, seen)
    whole = torch.cat([torch.ones(1, seen, 2), given], 1)
    assert torch.equal(blocks.flatten(1, 2), whole[:, : 2 * blocks.shape[1]])
    given.zero_()
    assert torch.equal(left, whole[:, 2 * blocks.shape[1] :])
