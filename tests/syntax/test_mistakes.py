"""Texts that are no specs: one finding for one mistake, where the mistake is."""

from __future__ import annotations

import pytest

from archc.diagnostics import ArchError, Diagnostic
from archc.source import Source
from archc.syntax.parse import parse

HEAD = "layer L(d, H):\n    input x[d]\n"


def findings(text: str) -> tuple[Diagnostic, ...]:
    with pytest.raises(ArchError) as refused:
        parse(Source("mine.arch", text))
    return refused.value.diagnostics


def only(text: str) -> tuple[str, int, str, str]:
    """Code, line and marked text of the only finding, and everything it says."""
    (finding,) = findings(text)
    assert finding.label is not None
    span = finding.label.span
    return finding.code, span.line, span.text, finding.render()


@pytest.mark.parametrize(
    ("body", "line", "part", "columns"),
    [
        ("    z = x\n      w = x\n    output w\n", 4, "w = x", {5}),
        ("    z = x\n        + x\n    output z\n", 4, "+ x", {5}),
        ("    recurrence s[d]:\n            s[t] = x\n        z = x\n", 5, "z = x", {5, 13}),
        ("    repeat 2 as l:\n        x = x\n      y = x\n", 5, "y = x", {5, 9}),
        ("    z = (x\n  + x)\n   output z\n", 5, "output z", {5}),
        ("    z = x  # of\n# a remark\n  output x\n", 5, "output x", {5}),
    ],
)
def test_indentation_that_fits_no_block(body: str, line: int, part: str, columns: set[int]) -> None:
    """The line itself is marked; the blocks that it could belong to are named by their columns."""
    code, at, text, shown = only(HEAD + body)
    assert (code, at, text) == ("E0013", line, part)
    assert all(f"column {column}" in shown for column in columns)


def test_the_first_line_is_not_blamed_for_a_later_one() -> None:
    found = only("layer L(d):\n        input x[d]\n    output y[d] = x\n")
    assert found[:3] == ("E0013", 3, "output y[d] = x")


def test_what_comes_first_is_said_of_two_mistakes() -> None:
    """A bracket that stays open after a habit of another language, and before it."""
    assert only(HEAD + "    z = self.W(x)\n    w = (x\n    output w\n")[:2] == ("E0012", 3)
    assert only(HEAD + "    w = (x\n    z = self.W(x)\n    output w\n")[:2] == ("E0018", 3)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('layer L(d):\n    """A layer.\n    input x[d]\n    output x\n', 2),
        ('layer L(d):\n    """A.\n    input x[d]\n\nlayer M(d):\n    """B."""\n    output x\n', 2),
        ('layer L(d):\n    """A."""\n    output x\n\nlayer M(d):\n    """B.\n    output x\n', 6),
    ],
)
def test_a_docstring_that_is_never_closed(text: str, line: int) -> None:
    assert only(text)[:3] == ("E0018", line, '"""')


def test_quotes_in_comments_open_nothing() -> None:
    text = 'layer L(d):  # """ no docstring\n    input x[d]\n    output x  # """\n'
    assert parse(Source("mine.arch", text)).decls[0].name == "L"


@pytest.mark.parametrize(
    ("char", "says"),
    [
        ("\u00a0", "a non-breaking space (U+00A0)"),
        ("\u2003", "the character U+2003 (em space)"),
        ("\u3000", "the character U+3000 (ideographic space)"),
        ("\t", "a tab"),
        ("\u200b", "the character U+200B (zero width space)"),
        ("\x07", "the character U+0007"),
    ],
)
def test_characters_that_cannot_be_seen_are_named(char: str, says: str) -> None:
    code, line, text, shown = only(HEAD + f"    output{char}y[d] = x{char}\n")
    assert (code, line, text) == ("E0006", 3, char)
    assert f"{says} is not allowed" in shown and char not in shown and "\ufffd" not in shown


def test_spaces_of_other_kinds_do_no_harm_in_words() -> None:
    text = 'layer L(d):\n    """A\u00a0layer."""\n    input x[d]  # of\u00a0size d\n    output x\n'
    parse(Source("mine.arch", text))


@pytest.mark.parametrize(
    ("line", "part", "says"),
    [
        ("z = 2 x", "x", "`2 * x`"),
        ("z = x y + 1", "y", "`x * y`"),
        ("z = x S[t-1]", "S", "`x @ S`"),
        ("param W[d H]", "H", "`d, H`"),
        ("ouput y[d] = x", "ouput", "did you mean `output`?"),
        ("recurence s[d]:", "recurence", "did you mean `recurrence`?"),
        ("x @ W", "@", "`z = ...`"),
        ("z = (x))", ")", "no bracket is open"),
        ('"what it is"', '"what it is"', "a docstring has three quotes"),
        ('"""too late"""', '"""too late"""', "a docstring is the first line of its layer"),
        ('z = x if c == "a else x', '"', "never closed"),
        ("z = 值", "值", "ASCII letters"),
        ("param u[d]; w(d) = 1", "w(d)", "square brackets"),
        ("output y = f(x, d), x", ", x", "a statement for each"),
        ("recurrence s[d] over H, chunk 64:", "chunk 64", "`chunk: size 64`"),
        ("z = f(x d)", "d", "`x * d`"),
        ("function f(z):", "f", "a `function` stands by itself"),
    ],
)
def test_the_mark_stands_at_the_mistake(line: str, part: str, says: str) -> None:
    _, at, text, shown = only(HEAD + f"    {line}\n    output x\n")
    assert (at, text) == (3, part) and says in shown


def test_sizes_side_by_side() -> None:
    code, _, text, shown = only("layer L(d H, K = 2):\n    input x[d]\n    output x\n")
    assert (code, text) == ("E0012", "H") and "a comma between them: `d, H`" in shown


def test_a_habit_behind_an_open_bracket_is_not_blamed() -> None:
    code, line, text, _ = only(HEAD + "    z = (x + 1\n    for i in x:\n    output z\n")
    assert (code, line, text) == ("E0018", 3, "(")


def test_mistakes_in_two_layers_are_two_findings() -> None:
    text = HEAD + "    z = F.relu(x)\n    output z\n" + "layer M(d):\n    input x[d]\n    z := x\n"
    assert [finding.label.span.text for finding in findings(text) if finding.label] == [
        "F.relu", ":=",
    ]  # fmt: skip
