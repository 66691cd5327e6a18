"""Seven programs by hand: right in float64 under the interpreter of tile programs."""

from __future__ import annotations

import pytest

from archc.tile.interpreter import run
from tests.tile.cases import CASES, Drawn, errors


@pytest.mark.parametrize("name", CASES)
def test_programs_are_right_in_float64(name: str) -> None:
    case = CASES[name](Drawn())
    run(case.program, case.tensors, case.sizes, case.constants, exact=True)
    limit = 1e-6 if name == "delta_sweep" else 1e-12
    assert max(errors(case).values()) < limit, errors(case)
