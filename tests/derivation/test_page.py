"""Pages of derivations in every form."""

from __future__ import annotations

import re
import xml.dom.minidom
from collections.abc import Iterator

import pytest

from archc.commands.catalogue import doc_parts
from archc.commands.stages import layer_of
from archc.derivation import document, html, step_algebra, story
from archc.derivation.mathml import as_mathml
from archc.derivation.maths import Name, Number, Sum, named, row, slope
from archc.derivation.page import Chapter, Checked, Excerpt, Mark, Page, Step, Table, para
from archc.derivation.story import page_of
from archc.derivation.telling import Telling, excerpt
from archc.elaborate.elaborate import elaborate
from archc.source import Source, Span
from archc.specfile import bundled, import_source
from archc.syntax.parse import parse
from archc.verify.checks import Check


def page(spec: str) -> Page:
    layer = layer_of(spec, {})
    return page_of(layer, {}, *doc_parts(layer.doc))


MADE_OF_OTHERS = {
    "deepseek_v3", "dsa", "gemma3", "gla_block", "gpt_oss", "kimi_linear", "mamba2_lm", "mhc",
    "nsa", "qwen3_next", "xlstm",
}  # fmt: skip
"""Specs whose pages take long, and have nothing that others have not."""


@pytest.fixture
def without_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    def skipped(checks: Iterator[Check], sizes: str) -> Iterator[Checked]:
        return iter(Checked(check.what, "", 0.0, 1.0) for check in checks)

    monkeypatch.setattr(Telling, "measured", staticmethod(skipped))
    monkeypatch.setattr(story, "rewritten", lambda *_: 0.0)


@pytest.mark.default(
    "attention",
    "cross_attention",
    "gla",
    "kda",
    "lstm",
    "mamba",
    "mesa",
    "moe",
    "path",
    "lm",
    "swiglu",
)
@pytest.mark.usefixtures("without_numbers")
@pytest.mark.parametrize(
    "spec",
    [
        pytest.param(name, marks=pytest.mark.slow if name in MADE_OF_OTHERS else ())
        for name in bundled()
    ],
)
def test_every_spec_has_a_page(spec: str):
    """It is XML, loads nothing, and has no script; the other forms have as many steps."""
    made = page(spec)
    text = html.as_html(made)
    dom = xml.dom.minidom.parseString(text.removeprefix("<!DOCTYPE html>"))
    assert not dom.getElementsByTagName("script")
    assert not re.search(r"\b(src|url)\b\s*[=(]", text)
    assert all(a.getAttribute("href").startswith(("#s", "https://arxiv.org/"))
               for a in dom.getElementsByTagName("a"))  # fmt: skip
    ids = [each.getAttribute("id") for each in dom.getElementsByTagName("h3")]
    assert len(ids) == sum(len(chapter.steps) for chapter in made.chapters)
    for plain in (document.as_text(made), document.as_markdown(made)):
        assert all(step.title in plain for chapter in made.chapters for step in chapter.steps)
    tex = document.as_tex(made)
    assert tex.count(r"\subsection") == len(ids)
    assert tex.count("{") == tex.count("}")


def test_a_loop_says_why():
    """Of a sequential cell: the reason, what is underlined, and what to do."""
    (first, _) = page("lstm").chapters
    why = next(step for step in first.steps if step.title == "Why it is a loop")
    shown = next(block for block in why.blocks if isinstance(block, Excerpt))
    (mark,) = shown.marks
    assert shown.lines[mark.line][mark.start : mark.end] == "sigmoid(a_f + R_f @ h[t-1])"
    text = " ".join(document.as_text(page("lstm")).split())
    assert "chunk: sequential" in text and "^^^^^^" in text


def test_an_attention_shows_what_it_keeps():
    """576 numbers a token at 128 heads of 128, against 32,768 and the rotated key."""
    made = page("mla")
    step = next(s for s in made.chapters[-1].steps if s.title.startswith("What an attention keeps"))
    ways, numbers = (block for block in step.blocks if isinstance(block, Table))
    assert [str(row[0]).endswith("(taken)") for row in ways.rows[::3]] == [False, True, True]
    assert [row[1] for row in numbers.rows] == ["32.8 k", "576", "576"]
    assert numbers.head[0] == "with C = 512, H = 128, K = 128, R = 64, V = 128"


GIVEN = """
layer Token(D):
    input r[D], x[D]
    output top[D] = x

layer Merge(D):
    input x[D], x'[D]
    output top[D] = max(x, x')

layer Apply(D):
    input x[D], m[D]
    output new[D] = max(m, x)

layer Record(D):
    input r[D], x[D]
    chunk: law(Token, Merge, Apply)
    recurrence m[D] = -inf:
        m[t] = max(m[t-1], x)
    output m
"""


@pytest.mark.usefixtures("without_numbers")
def test_a_law_of_the_spec():
    layer = elaborate(parse(Source("my.arch", GIVEN)), None, {}, import_source)
    text = document.as_text(page_of(layer, {}))
    assert "By a law of the spec" in text
    assert "top = x    (Token)" in text and "top = max(x, x′)    (Merge)" in text


# --- pieces ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "marked"),
    [
        ("where Max(0, floor((T - n)/w) + 1) > K", "where `Max(0, floor((T - n)/w) + 1) > K`"),
        ("only where T > 2*(G*K + H)/3, and little", "only where `T > 2*(G*K + H)/3`, and little"),
        ("`apart`: per pair against per token", "`apart`: per pair against per token"),
    ],
)
def test_formulas_in_words_are_code(words: str, marked: str):
    assert step_algebra.coded(words) == marked


def test_marks_of_an_excerpt():
    source = Source("my.arch", "one:\n    a = b + c\n    d = e\n")
    whole, part = Span(source, 0, 27), Span(source, 13, 18)
    shown = excerpt(whole, [part])
    assert (shown.first, shown.marks) == (1, (Mark(1, 8, 13),))
    assert shown.lines[1][8:13] == "b + c"


def test_a_check_that_fails():
    """It says WRONG in every form, and how far off it is."""
    checked = Checked("a form", "12 tokens", 0.3, 1e-10)
    made = Page("X", "", "", (), (Chapter("c", (Step("s", (checked,)),)),))
    assert made.wrong == (checked,)
    for text in (html.as_html(made), document.as_text(made), document.as_markdown(made)):
        assert "WRONG" in text and "3.0e-01" in text


@pytest.mark.parametrize("more", [0, 1])
def test_a_table_that_is_too_wide_has_a_line_for_each_cell(more: int):
    """Two columns and the gaps after them fill 108 letters, or one more."""
    rows = (("a" * 60, "b" * (44 + more)), ("c", "d"))
    made = Page("X", "", "", (Table(("one", "two"), rows),), ())
    lines = document.as_text(made).split("\n")
    assert (f"    {'c':<60}  d" in lines) == (not more)
    assert (f"        two: {'b' * 45}" in lines) == bool(more)


def test_a_comma_stays_with_its_formula():
    made = Page("X", "", "", (para("see ", Name("a"), ", and ", Name("b"), "."),), ())
    assert "</math>,</span> and" in html.as_html(made)


def test_mathml():
    sum = row(Sum("∑", Name("i")), slope(named("beta_q", "t-1")), Number("2"))
    text = as_mathml(sum)
    xml.dom.minidom.parseString(text)
    assert (
        "<mo>∑</mo>" in text and "<mi>β</mi>" in text and '<mi mathvariant="normal">d</mi>' in text
    )
