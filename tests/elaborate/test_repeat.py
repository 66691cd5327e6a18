"""Names that a `repeat` carries: what stands for which value is never a guess."""

from __future__ import annotations

import pytest
import torch

import archc
from archc.diagnostics import ArchError

MODEL = """
model Halting(d, L = 3):
    input x[d]
    y = 0 * x
    left = 1 + 0 * x
    repeat L as l:
{body}
    output y
"""

SUMMED = """
        h = x / 2
        y = y + left * h
        left = left * (1 - h)
"""

LATE = """
        h = x / 2
        left = left * (1 - h)
        y = y + left * h
"""

INNER = """
        repeat 2 as j:
            left = left / 2
        y = y + left * x
"""


def test_above_its_new_value_a_name_is_what_came_in() -> None:
    x = torch.full((1, 2, 1), 0.5, dtype=torch.float64)
    module = archc.parse(MODEL.format(body=SUMMED)).module(dtype=torch.float64, d=1)
    y, left = 0.0, 1.0
    for _ in range(3):
        y, left = y + left * 0.25, left * 0.75
    torch.testing.assert_close(module(x), torch.full_like(x, y))


@pytest.mark.parametrize("body", [LATE, INNER])
def test_below_it_is_not_read(body: str) -> None:
    """It would be what came in, and look like the new value."""
    with pytest.raises(ArchError, match=r"E0227[\s\S]*`left` is read below the line"):
        archc.parse(MODEL.format(body=body))
