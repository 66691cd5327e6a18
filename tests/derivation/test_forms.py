"""What pages say, to the byte: every kind of block in every form, and pages of specs unlike the one
that `tests/commands/test_derive.py` keeps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from archc.commands.catalogue import doc_parts
from archc.commands.stages import layer_of
from archc.derivation import document, html
from archc.derivation.maths import Name, Number, Sum, named, row, slope
from archc.derivation.page import (
    Chapter,
    Checked,
    Excerpt,
    Formula,
    Listing,
    Mark,
    Page,
    Picture,
    Step,
    Table,
    para,
)
from archc.derivation.story import page_of
from archc.derivation.telling import Telling
from archc.verify.checks import Check

GOLDEN = Path(__file__).parents[1] / "golden" / "derive"

FORMS: dict[str, Callable[[Page], str]] = {
    "txt": document.as_text, "md": document.as_markdown, "tex": document.as_tex,
    "html": html.as_html,
}  # fmt: skip

SUM = row(Sum("∑", Name("i")), slope(named("beta_q", "t-1")), Number("2"))

BLOCKS = (
    para("A word, ", Name("a"), ', "quoted" & <marked> `code` of 5% and x_1.'),
    Formula(SUM), Formula(SUM, "a & note"), Formula(SUM, "", "parallel"),
    Formula(SUM, "both", "sequential"),
    Excerpt("my.arch", 9, ('"a" = <b> & c', "    d = e - f", "g"),
            (Mark(0, 6, 9), Mark(1, 8, 13), Mark(1, 10, 11), Mark(1, 8, 9, fault=True),
             Mark(2, 0, 1, fault=True))),
    Table(("name", "what"), (("`one`", para("of ", Name("a")).parts[1]), ("two", "b"))),
    Table(("", ""), (("no", "head"),)),
    Table(("name", "what", ""), (("x" * 60, "y" * 60, "z"), ("", "w", ""))),
    Picture("<svg/>", "o--o", "A picture & more"),
    Listing("A `listing`", "if a < b:\n    c()\n"),
    Checked("a form", "12 tokens", 1e-12, 1e-10), Checked("another", "12 tokens", 0.3, 1e-10),
)  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_every_block(form: str, golden: Callable[[Path, str], None]) -> None:
    step = Step("A step", BLOCKS, place="my.arch:9")
    made = Page("X", "About & so.", "A. Author, arXiv 1234.56789", BLOCKS[:2],
                (Chapter("One", (step, Step("Another", BLOCKS[:1]))),))  # fmt: skip
    text = FORMS[form](made)
    golden(GOLDEN / f"blocks.{form}", text.split("</style>")[-1])


@pytest.mark.parametrize("spec", ["gla", "lstm", "mlstm"])
def test_pages_in_text(
    spec: str, golden: Callable[[Path, str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a correction, as a loop, and with a running maximum; nothing is computed."""

    def skipped(checks: Iterator[Check], sizes: str) -> Iterator[Checked]:
        return iter(Checked(check.what, "", 0.0, 1.0) for check in checks)

    monkeypatch.setattr(Telling, "measured", staticmethod(skipped))
    layer = layer_of(spec, {})
    made = page_of(layer, {}, *doc_parts(layer.doc))
    golden(GOLDEN / f"{spec}.txt", document.as_text(made))
    if spec == "mlstm":
        golden(GOLDEN / f"{spec}.tex", document.as_tex(made))
