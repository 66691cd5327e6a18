"""Recurrences token by token as tile programs: right in float64, beside what their graphs mean."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.lowering.stepped import Launch, walks

SPECS = (
    "delta", "gated_delta", "gated_delta_product", "gla", "kda", "linear_attention",
    "linear_attention_simple", "lstm", "mamba", "mesa", "mlstm", "mom", "rwkv7", "slstm", "ssm",
    "ssm_selective",
)  # fmt: skip
"""Every bundled spec with a recurrence, but for those that call another's."""

CELLS = Path(__file__).parents[1] / "backends" / "triton" / "cells"

LIMIT = {"mesa": 1e-6}
"""What conjugate gradients leave; 1e-10 where nothing is said."""


def wrong(spec: str, unit: int, tokens: int, in_place: bool) -> list[float]:
    torch.manual_seed(0)
    limit = LIMIT.get(spec, 1e-10)
    errors = [Launch(walk, tokens, in_place).error() for walk in walks(spec, unit)]
    assert errors
    return [error for error in errors if not error < limit]


@pytest.mark.parametrize("spec", SPECS)
def test_every_bundled_recurrence(spec: str) -> None:
    """One token, in place, and three that go elsewhere; dims that no block divides."""
    assert not wrong(spec, 5, 1, in_place=True)
    assert not wrong(spec, 5 if spec == "mesa" else 60, 3, in_place=False)


@pytest.mark.parametrize("cell", sorted(CELLS.glob("*.arch")), ids=lambda path: path.stem)
def test_every_other_cell(cell: Path) -> None:
    assert not wrong(str(cell), 5, 3, in_place=False)


def test_no_token_leaves_states_as_they_are() -> None:
    assert not wrong("lstm", 5, 0, in_place=False)
