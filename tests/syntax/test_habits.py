"""The table of what people write who come from elsewhere: each row is tried, both ways."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from archc.diagnostics import ArchError, Diagnostic
from archc.elaborate.calls import BUILTINS
from archc.elaborate.elaborate import elaborate, library
from archc.ir.layer import Layer
from archc.ir.verify import verify
from archc.source import Source
from archc.specfile import import_source
from archc.syntax.habits import RULES, said
from archc.syntax.habits_table import FILE, NAMES, READ, STEP, Habit, same
from archc.syntax.habits_texts import TEXTS
from archc.syntax.parse import parse

ROOT = Path(__file__).parents[2]
HEAD = "layer L(d, H, K):\n    input x[d], b[d], a[H], q[H, K], k[H, K], v[H, K]\n"
INPUTS: Mapping[str, str] = {"U": "    param U[d, d']\n", "i": "    input i in H\n"}
"""What only some examples use: a parameter that is not used is refused."""

ROWS = [*RULES.values(), *NAMES, *TEXTS]


def elaborated(text: str) -> Layer:
    layer = elaborate(parse(Source("mine.arch", text)), None, {}, import_source)
    verify(layer)
    return layer


def findings(text: str) -> tuple[Diagnostic, ...]:
    with pytest.raises(ArchError) as refused:
        elaborated(text)
    return refused.value.diagnostics


def spec(example: str, place: str) -> str:
    """A whole spec around the lines of an example."""
    if place == FILE:
        return example + "\n"
    lines = example.split("\n")
    if place == STEP:
        read = [] if any(line.startswith("r = ") for line in lines) else ["r = S[t].T @ q"]
        alpha = ["alpha = a"] if "alpha" in example else []
        inside = [f"    {line}" for line in [*lines, *read]]
        lines = [*alpha, "recurrence S[K, K'] over H:", *inside]
    elif place == READ:
        lines = ["attend s <= t over H:", *(f"    {line}" for line in lines)]
    words = re.findall(r"[A-Za-z]+", example)
    head = HEAD + "".join(text for name, text in INPUTS.items() if name in words)
    last = {STEP: ["output r"], READ: ["output o"]}.get(place, [])
    if not last and "output" not in example:
        last = ["output z"]
    return head + "".join(f"    {line}\n" for line in [*lines, *last])


def advice(habit: Habit) -> str | None:
    """What the row says where its wrong example is refused, if it does."""
    found = findings(spec(habit.wrong, habit.place))
    text = re.escape(said(habit, given="GIVEN", dim="DIM"))
    row = re.sub(r"GIVEN|DIM|\\\{\w+\\\}", ".*", text)
    helps = (text for each in found for text in each.helps)
    return next((text for text in helps if re.fullmatch(row, text)), None)


@pytest.mark.parametrize("habit", ROWS, ids=lambda habit: habit.found[:30])
def test_what_is_written_wrong_gets_the_advice_of_its_row(habit: Habit) -> None:
    assert advice(habit) is not None


@pytest.mark.parametrize("habit", ROWS, ids=lambda habit: habit.found[:30])
def test_what_is_written_instead_compiles(habit: Habit) -> None:
    elaborated(spec(habit.right, habit.place))


@pytest.mark.parametrize("wrong, helped", [
    ("z = normalize(q * k)", "z = l2norm[K](q * k)"),
    ("z = q * mish(k + v)", "z = q * ((k + v) * tanh(softplus(k + v)))"),
    ("f, g = silu(x), max(x, b)\nz = f * g", "f = silu(x); g = max(x, b)\nz = f * g"),
    ("f, g = (x, b)\nz = f * g", "f = x; g = b\nz = f * g"),
    ("z = F.normalize(x - b, dim=-1)", "z = l2norm[d](x - b)"),
])  # fmt: skip
def test_the_advice_has_what_the_reader_wrote(wrong: str, helped: str) -> None:
    (found,) = findings(spec(wrong, "layer"))
    quoted = re.search(r"`(.*)`", found.helps[0])
    assert quoted is not None and quoted[1] in helped
    elaborated(spec(helped, "layer"))


def test_a_size_made_in_the_body_is_an_argument_with_that_default() -> None:
    text = (
        "layer L(d, H):\n    input x[d]\n    K = d // H\n    param W[d, K]\n    output y = x @ W\n"
    )
    (found,) = findings(text)
    assert "`layer L(..., K = d // H)`" in found.helps[0]
    elaborated(text.replace("    K = d // H\n", "").replace("(d, H)", "(d, H, K = d // H)"))


def test_a_name_stands_in_one_row_and_is_none_of_the_language() -> None:
    names = [name for habit in NAMES for name in habit.found.split()]
    assert len(names) == len(set(names))
    ours = {*BUILTINS, *library()}
    meanwhile = {"softmax", "sum", "mean", "max", "min", "prod", "size"}  # as methods of a value
    meanwhile |= {"detach"}  # as a method of a value
    meanwhile |= {"logsumexp", "cross_entropy"}  # as functions of a module
    assert set(names) & ours == meanwhile
    assert ours > same()


def test_the_page_is_the_table(golden: Any) -> None:
    """docs/from_pytorch.md has a row for each; `--update-golden` writes it."""
    lines = [
        "# From PyTorch to `.arch`",
        "",
        "What people write who come from PyTorch, NumPy, Python or LaTeX, and what a spec says.",
        "`archc check` gives the same advice where it meets one of these.",
        "",
        "| written | instead | for example |",
        "|---|---|---|",
    ]
    for habit in ROWS:
        wrong = habit.wrong if habit.place != FILE else _differing(habit)[0]
        right = habit.right if habit.place != FILE else _differing(habit)[1]
        says = _cell(advice(habit) or "")
        lines.append(f"| {_code(wrong)} | {says} | {_code(right)} |")
    golden(ROOT / "docs" / "from_pytorch.md", "\n".join(lines) + "\n")


def _differing(habit: Habit) -> tuple[str, str]:
    """The lines of two files that are not the same."""
    wrong, right = habit.wrong.split("\n"), habit.right.split("\n")
    return (
        "\n".join(line.strip() for line in wrong if line not in right),
        "\n".join(line.strip() for line in right if line not in wrong),
    )


def _code(text: str) -> str:
    return "<br>".join(f"`{_cell(line)}`" for line in text.split("\n") if line)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
