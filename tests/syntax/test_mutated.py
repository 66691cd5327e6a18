"""Bundled specs with one change: each finding can be shown, at its place."""

from __future__ import annotations

import random

import pytest

from archc.diagnostics import ArchError, Diagnostic
from archc.elaborate.elaborate import elaborate
from archc.source import Source
from archc.specfile import bundled, import_source, read
from archc.syntax.habits_table import NAMES
from archc.syntax.habits_texts import TEXTS
from archc.syntax.parse import parse

PIECES = (
    *" \t\n()[]{}:;,.=+-*/@^&|!~'\"#\\S0_\u00a0\u200b值²·\u0302",
    *('"""', "S[t-1]", "x.view(", "lambda x:", "for ", "    ", "recurrence ", "attend ", ".T"),
)
EXAMPLES = [habit.wrong.replace("\n", "\n    ") for habit in (*NAMES, *TEXTS)]


def mutated(draw: random.Random, text: str) -> str:
    """A text with one change: of characters, of a line, of an indentation, or a habit put in."""
    kind, at = draw.randrange(5), draw.randrange(len(text))
    if kind == 0:
        return text[:at] + draw.choice(PIECES) + text[at:]
    if kind == 1:
        return text[:at] + text[at + draw.randrange(1, 4) :]
    lines = text.split("\n")
    line = draw.randrange(len(lines))
    if kind == 2:
        lines[line] = " " * draw.randrange(14) + lines[line].lstrip()
    elif kind == 3:
        lines.insert(line, lines.pop(draw.randrange(len(lines))))
    else:
        lines.insert(line, "    " + draw.choice(EXAMPLES))
    return "\n".join(lines)


def findings(text: str) -> tuple[Diagnostic, ...]:
    try:
        elaborate(parse(Source("mine.arch", text)), None, {}, import_source)
    except ArchError as error:
        return error.diagnostics
    return ()


def hold(text: str) -> int:
    """Every place is one of its text, and is shown: how many findings there are."""
    found = findings(text)
    for finding in found:
        shown, data = finding.render(), finding.as_json()
        assert finding.label is not None, finding
        for label in (finding.label, *finding.others):
            span = label.span
            assert 0 <= span.start <= span.end <= len(span.source.text)
            assert f"{span.line} | " in shown
        place = data["label"]
        assert isinstance(place, dict)
        span = finding.label.span
        assert (place["line"], place["column"]) == (span.line, span.column)
        assert "\t" not in shown and "\u00a0" not in shown and "\u200b" not in shown
    return len(found)


def run(seeds: range) -> list[int]:
    texts = [read(name).text for name in bundled()]
    counts = []
    for seed in seeds:
        draw = random.Random(seed)
        counts.append(hold(mutated(draw, draw.choice(texts))))
    return counts


@pytest.mark.slow
def test_some_changes() -> None:
    """Most changes are refused, and most of them with a single finding."""
    counts = run(range(60))
    refused = [count for count in counts if count]
    assert len(refused) > 30
    assert sum(count == 1 for count in refused) > 0.75 * len(refused)


@pytest.mark.slow
def test_many_changes() -> None:
    run(range(1000, 6000))
