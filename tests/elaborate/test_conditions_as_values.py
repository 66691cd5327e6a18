"""A condition on numbers is decided when compiling; as a value per token it is refused as that."""

from __future__ import annotations

import pytest

import archc


@pytest.mark.parametrize("value", ["where(K > 2, x, 1)", "x * (2 % 3 >= 3)", "x + (K == 2)"])
def test_the_help_says_what_to_write(value: str) -> None:
    with pytest.raises(archc.ArchError) as caught:
        archc.parse(f"layer L(d, K):\n    input x[d]\n    output y[d] = {value}\n")
    (finding,) = caught.value.diagnostics
    assert finding.code == "E0207" and "condition on numbers" in finding.message
    assert finding.helps == ("choose with `a if condition else b`",)
