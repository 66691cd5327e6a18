"""How findings are shown: the line, the marks under it, and the same places as data."""

from __future__ import annotations

import unicodedata

import pytest

import archc
from archc.diagnostics import MOST_NAMES, ArchError, Diagnostic, Label, cells, did_you_mean, visible
from archc.source import Source, Span


def found(text: str, **given: object) -> tuple[Diagnostic, ...]:
    """What a spec is refused with."""
    with pytest.raises(ArchError) as refused:
        archc.parse(text, **given)
    return refused.value.diagnostics


def shown(line: str, part: str, text: str = "") -> tuple[str, str]:
    """A line and the marks below the part of it, as rendered, without the margin."""
    start = line.index(part)
    source = Source("mine.arch", line + "\n")
    label = Label(Span(source, start, start + len(part)), text)
    lines = Diagnostic("E0012", "unexpected", label).render().split("\n")
    return lines[3].removeprefix("1 | "), lines[4].removeprefix("  | ")


def marked(line: str, part: str) -> str:
    """The cells of the shown line that have a mark below, read as a terminal draws them."""
    text, marks = shown(line, part)
    column, under = 0, ""
    for char in text:
        wide = cells(char)
        if "^" in marks[column : column + max(1, wide)] or (not wide and under):
            under += char
        column += wide
    return under


@pytest.mark.parametrize(
    ("line", "part"),
    [
        ("z = x + q", "q"),
        ("# 值 is a value; z = q", "q"),
        ("# ｘ＋ｙ; 和 z = q + 1", "q + 1"),
        ("k\u0302 = x + q", "q"),
        ("e\u0301\u0302\u0323 = 值 + q", "值"),
        ("β = α + q", "α + q"),
        ("\u1100\u1161 = q", "q"),
    ],
)
def test_marks_stand_under_their_part(line: str, part: str) -> None:
    assert marked(line, part) == part


def test_a_mark_on_a_letter_is_shown_with_its_letter() -> None:
    assert shown("k\u0302 = x", "\u0302") == ("k\u0302 = x", "^")


@pytest.mark.parametrize("tabs", [1, 2, 3])
def test_a_tab_is_seen_and_is_as_wide_wherever_it_stands(tabs: int) -> None:
    text, marks = shown("\t" * tabs + "q = x\t+ y", "y")
    assert text == "→   " * tabs + "q = x→   + y"
    assert marks.index("^") == text.index("y")


@pytest.mark.parametrize("char", ["\u00a0", "\u200b", "\x07", "\u202e", "\x1b"])
def test_what_a_terminal_does_not_show_is_shown_by_its_code(char: str) -> None:
    text, marks = shown(f"q ={char}x", char, "here")
    assert text == f"q =<U+{ord(char):04X}>x"
    assert marks == "   ^^^^^^^^ here"
    assert visible(f"`{char}`") == f"`<U+{ord(char):04X}>`"


def test_a_long_line_is_shown_around_its_mark() -> None:
    line = "z = " + " + ".join(f"x{n}" for n in range(100))
    text, marks = shown(line, "x90", "not found")
    assert text.startswith("…") and len(text) <= 162
    first = marks.index("^")
    assert text[first : first + 3] == "x90" and marks.endswith("^^^ not found")


def test_two_marks_of_one_long_line_stay_in_it() -> None:
    line = "z = " + " + ".join(f"x{n}" for n in range(100))
    source = Source("mine.arch", line + "\n")
    one, two = (Span(source, line.index(n), line.index(n) + 3) for n in ("x95", "x10"))
    lines = Diagnostic("E0201", "no", Label(one, "a"), (Label(two, "b"),)).render().split("\n")
    assert max(map(len, lines)) <= 4 + 162 + 4
    assert lines[2].strip() == "|" and "^^^ a" in "\n".join(lines)


def test_cells_are_what_unicode_says() -> None:
    assert cells("a\u0301") == 1 and cells("值") == 2 and cells("ＡＢ") == 4 and cells("") == 0
    wide = [chr(code) for code in range(0x4E00, 0x4E10)]
    assert all(unicodedata.east_asian_width(char) == "W" for char in wide)
    assert cells("".join(wide)) == 32


def test_lines_of_another_system_show_no_carriage_return() -> None:
    text = "layer L(d):\r\n    input x[d]\r\n    output y[d] = q\r\n"
    (finding,) = found(text)
    assert "<U+" not in finding.render() and "�" not in finding.render()


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("layer L(d):\n    input x[d]\n    output y[d] = F.relu(x)\n", "F.relu"),
        ("layer L(d):\n    input x[d]\n    z = x\n      output y[d] = z\n", "output y[d] = z"),
        ("layer L(d):\n    input x[d]\n    # 值\n    output y[d] = x +\u00a0x\n", "\u00a0"),
        ("layer L(d):\n\tinput x[d]\n", "\t"),
        ('layer L(d):\n    """open\n    input x[d]\n    output y = x\n', '"""'),
        ("layer L(d, K):\n    input x[d]\n    output y = rmsnorm[K](x)\n", "rmsnorm[K](x)"),
    ],
)
def test_data_has_the_same_places(text: str, part: str) -> None:
    """Line and column of the data, of every label, are those of the text; so is the arrow's."""
    (finding,) = found(text)
    lines = text.split("\n")
    data = finding.as_json()
    place = data["label"]
    assert isinstance(place, dict)
    line, first, last = place["line"], place["column"], place["end_column"]
    assert place["end_line"] == line and lines[line - 1][first - 1 : last - 1] == part
    assert f":{line}:{first}\n" in finding.render()
    others = data["others"]
    assert isinstance(others, list) and len(others) == len(finding.others)
    for label, other in zip(finding.others, others, strict=True):
        assert (label.span.line, label.span.column) == (other["line"], other["column"])


@pytest.mark.parametrize(
    ("name", "known", "near"),
    [
        ("RMSNorm", ["rmsnorm", "l2norm"], "rmsnorm"),
        ("Wq", ["W_q", "W_k"], "W_q"),
        ("d_k", ["W_k", "W_q"], None),
        ("HH", ["H", "d"], "H"),
        ("sigmod", ["sigmoid", "sign"], "sigmoid"),
    ],
)
def test_did_you_mean(name: str, known: list[str], near: str | None) -> None:
    assert did_you_mean(name, known) == ((f"did you mean `{near}`?",) if near else ())


@pytest.mark.parametrize("more", [0, 1])
def test_no_name_is_looked_for_among_too_many(more: int) -> None:
    names = ["sigmoid", *(f"h_{number}" for number in range(1, MOST_NAMES + more))]
    assert bool(did_you_mean("sigmod", names)) is (more == 0)
