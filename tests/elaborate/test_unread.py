"""Values that no output depends on: found through other such values, and never where one is."""

from __future__ import annotations

from pathlib import Path

import pytest

from archc.elaborate.unread import unread
from archc.source import Source
from archc.syntax.parse import parse

SPECS = sorted((Path(__file__).parents[2] / "specs").glob("*.arch"))


def names(text: str) -> list[str]:
    lines = "\n".join(f"    {line}" for line in text.strip().splitlines())
    file = parse(Source("a.arch", f"layer A(d, H = 2, K = d / H):\n    input x[d]\n{lines}\n"))
    assert all(each.code == "E0226" and each.severity == "warning" for each in unread(file))
    return [each.message.removeprefix("no output depends on ") for each in unread(file)]


def test_what_only_unread_values_read_is_unread() -> None:
    assert names("a = x\nb = exp(a)\nc = exp(x)\noutput y[d] = c") == ["`a`", "`b`"]


def test_one_of_several_names_is_enough() -> None:
    assert names("a, b = x by 2\noutput y = b") == []
    assert names("a, b = x by 2\noutput y[d] = x") == ["`a` and `b`"]


@pytest.mark.parametrize(
    "text",
    [
        "n = d / 2\nparam W[d, n]\noutput y = x @ W",
        "a = x\noutput a",
        "a = exp(x)\nrecurrence s[d]:\n    s[t] = a * s[t-1] + x\noutput s",
        "a = exp(x)\nchunk: bound log(a) >= -5\nrecurrence s[d]:\n    s[t] = x + s[t-1]\noutput s",
        "repeat 2 as l:\n    param W[d, d']\n    h = x @ W\n    x = h\noutput y[d] = x",
    ],
)
def test_shapes_states_rules_and_loops_read(text: str) -> None:
    assert names(text) == []


def test_inputs_that_nothing_mentions() -> None:
    """A layer that another applies, or a law names, may have to take them."""
    inner = "block Inner(d):\n    input x[d], z[d]\n    output y[d] = x\n"
    outer = "layer Outer(d):\n    input x[d], u[d]\n    output y[d] = Inner(d)(x, x)\n"
    (found,) = unread(parse(Source("inputs", inner + outer)))
    assert found.message == "no output depends on `u`"
    assert "callers have to give it" in found.helps[0]


@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
def test_bundled_specs_read_all_that_they_define(path: Path) -> None:
    assert unread(parse(Source(path.name, path.read_text(encoding="utf-8")))) == ()
