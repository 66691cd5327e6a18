"""Recurrences in both directions, beside torch's."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import archc
from tests.newcomers.agreement import HERE, leaf, slopes

SPEC = archc.parse(
    (HERE / "gru.arch").read_text("utf-8")
    + """
layer BothWays(d, N):
    input x[d]
    onward = GRU(d, N)
    back = GRU(d, N)
    output y[N] = onward(x)
    output z[N] = reversed(back(reversed(x)))
"""
)


def gru(module: torch.nn.Module) -> torch.nn.Module:
    """torch's GRU in both directions with the weights of ours."""
    cell = torch.nn.GRU(4, 3, batch_first=True, bidirectional=True, dtype=torch.float64)
    own = {name: value.detach() for name, value in module.named_parameters()}
    for side, ending in (("gru", "l0"), ("gru_2", "l0_reverse")):
        p = {name.removeprefix(f"{side}."): value for name, value in own.items()}
        weights = {
            "weight_ih": torch.cat([p["W_r"].T, p["W_z"].T, p["W_n"].T]),
            "weight_hh": torch.cat([p["U_r"].T, p["U_z"].T, p["U_n"].T]),
            "bias_ih": torch.zeros(9, dtype=torch.float64),
            "bias_hh": torch.cat([torch.zeros(6, dtype=torch.float64), p["b_n"]]),
        }
        for name, value in weights.items():
            getattr(cell, f"{name}_{ending}").data = value
    return cell


@pytest.mark.parametrize("backend", ["eager", "triton"])
def test_a_gated_unit_in_both_directions(backend: str) -> None:
    """Values and gradients of the input; packed and padded sequences as each by itself."""
    module = SPEC.module(d=4, N=3, dtype=torch.float64, backend=backend)
    cell, x = gru(module), leaf([2, 7, 4], 0)
    want = cell(x)[0]

    def both(**more: Tensor) -> Tensor:
        return torch.cat(module(**more), -1)

    torch.testing.assert_close(both(x=x), want)
    torch.testing.assert_close(slopes(both(x=x), [x]), slopes(want, [x]))
    packed = both(x=x[:1], cu_seqlens=torch.tensor([0, 3, 7]))
    torch.testing.assert_close(packed[:, :3], cell(x[:1, :3])[0])
    torch.testing.assert_close(packed[:, 3:], cell(x[:1, 3:])[0])
    padded = both(x=x, attention_mask=torch.arange(7) >= torch.tensor([[0], [4]]))
    torch.testing.assert_close(padded[0], want[0])
    torch.testing.assert_close(padded[1:, 4:], cell(x[1:, 4:])[0])


def test_what_runs_backwards_is_not_continued() -> None:
    module = SPEC.module(d=4, N=3)
    with pytest.raises(ValueError, match="`z` has the tokens in another order"):
        module(torch.zeros(1, 2, 4), return_state=True)


def test_the_direction_of_a_block_stays() -> None:
    """A value inside of a block is that of one token."""
    text = """layer L(d):
    input x[d]
    recurrence h[d]:
        h[t] = h[t-1] / 2 + reversed(x)
    output h
"""
    with pytest.raises(archc.ArchError, match="reversed") as caught:
        archc.parse(text)
    assert "above it" in str(caught.value)
