"""Names that a `repeat` carries: what stands for which value is never a guess."""

from __future__ import annotations

import pytest
import torch

import archc

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
            left = left / 2
        y = y + left * x
        left = left * 2
"""

LAST = """
        left = left / 2
        y = y + left
        repeat 2 as j:
            left = left / 2
"""

ANEW = {SUMMED: (1, 0.25, 0.75), LATE: (0.75, 0.25, 0.75), INNER: (0.0625, 0.5, 0.125),
        LAST: (0.5, 1, 0.125)}  # fmt: skip
"""What `y` takes `left` by, beside another factor, and what is left, of x = 0.5."""


@pytest.mark.parametrize("body", ANEW)
def test_a_name_is_what_the_lines_above_have_made_of_it(body: str) -> None:
    """What came in above the line that gives it anew, also the loop inside, and that below."""
    x = torch.full((1, 2, 1), 0.5, dtype=torch.float64)
    module = archc.parse(MODEL.format(body=body)).module(dtype=torch.float64, d=1)
    y, left = 0.0, 1.0
    taken, factor, kept = ANEW[body]
    for _ in range(3):
        y, left = y + left * taken * factor, left * kept
    torch.testing.assert_close(module(x), torch.full_like(x, y))
