"""A file whose last layer is a part of one above it: a warning, unless it is asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

import archc
from archc.diagnostics import ArchWarning
from archc.elaborate.last import parts_at_the_end
from tests.console import run

PART = "layer Part(d):\n    input x[d]\n    output y[d] = 2 * x\n"
WHOLE = "layer Whole(d):\n    input x[d]\n    output y[d] = {}\n"
MORE = "layer More(d):\n    input x[d]\n    output y[d] = Whole(d)(x)\n"


@pytest.mark.parametrize(
    ("text", "whole"),
    [
        (WHOLE.format("x + Part(d)(x)") + PART, "Whole"),
        (MORE + WHOLE.format("x + Part(d)(x)") + PART, "More"),
        (PART + WHOLE.format("x + Part(d)(x)"), None),
        (WHOLE.format("exp(x)") + PART, None),
        (WHOLE.format("exp(x)") + "# Whole, not Part\n" + PART, None),
    ],
)
def test_the_last_layer_is_a_part_of_one_above(text: str, whole: str | None) -> None:
    """Of the one that no other is made of, where there are several."""
    found = parts_at_the_end(archc.parse(text).layer)
    assert [f"a part of `{whole}`" in each.message for each in found] == [True] * (
        whole is not None
    )


def test_a_layer_that_is_asked_for_is_meant(tmp_path: Path) -> None:
    file = tmp_path / "both.arch"
    file.write_text(WHOLE.format("x + Part(d)(x)") + PART)
    texts = [run("check", f"{file}{name}").output for name in ("", ":Part")]
    assert ["E0229" in text for text in texts] == [True, False]
    assert "ask for `both.arch:Whole`" in texts[0]
    with pytest.warns(ArchWarning, match="E0229"):
        archc.load(file).module(d=2)
