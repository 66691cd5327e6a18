"""`archc gallery`, and the page of it that is committed."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from archc.specfile import bundled
from tests.console import run

COMMITTED = Path(__file__).parents[2] / "docs" / "gallery" / "index.html"


@pytest.mark.slow
def test_the_committed_page_is_current():
    """`archc gallery -o docs/gallery/index.html` makes it again, byte by byte."""
    made = run("gallery", "-o", "-").stdout
    committed = COMMITTED.read_text("utf-8")
    sections = re.findall(r'<section id="(.*?)">', committed)
    assert sorted(sections) == list(bundled())
    nav = committed.partition("<nav>")[2].partition("</nav>")[0]
    assert re.findall(r'href="#(.*?)"', nav) == sections
    groups = dict(re.findall(r"<h2>(.*?)</h2>\n<p>(.*?)</p>", nav, re.DOTALL))
    assert (
        ">lm<" in groups["Models"] and ">kda<" in groups["Recurrences that correct what they hold"]
    )
    assert "prefers-color-scheme: dark" in committed
    assert made == committed, "out of date: archc gallery -o docs/gallery/index.html"
    assert len(committed) < 1_500_000


class Page(HTMLParser):
    """Tags that are open, what the page loads, and the text of its specs."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.loaded: list[str] = []
        self.specs: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in ("meta", "!doctype"):
            self.open.append(tag)
        self.loaded += [str(value) for key, value in attrs if key in ("src", "data")]
        if tag == "pre":
            self.specs.append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "pre" in self.open:
            self.specs[-1] += data


@pytest.mark.usefixtures("empty_folder")
def test_a_page_of_ones_own(tmp_path: Path):
    spec = (
        'layer Odd(d):\n    """<b>&</b> it. source: A & B, arXiv 1234.56789"""\n'
        "    input x[d]   # <i>\n    output y[d] = where(x < 0, -x, x)\n"
    )
    (tmp_path / "odd.arch").write_text(spec)
    assert run("gallery", "odd.arch", "kda", "-o", "page.html").exit_code == 0
    text = (tmp_path / "page.html").read_text("utf-8")
    page = Page()
    page.feed(text)
    assert page.open == [] and page.loaded == []
    assert page.specs[1] == spec.strip()
    assert "<b>" not in text and "<dd>A &amp; B, arXiv <a href=" in text
    assert text.count("<svg ") == 2 and "linear recurrence, decay per channel of K" in text


@pytest.mark.usefixtures("empty_folder")
def test_a_wrong_spec_leaves_no_page(tmp_path: Path):
    (tmp_path / "bad.arch").write_text("layer Bad(d):\n    output y[d] = z\n")
    assert run("gallery", "bad.arch", "-o", "page.html").exit_code == 1
    assert not (tmp_path / "page.html").exists()
