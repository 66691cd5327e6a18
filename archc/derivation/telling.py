"""The common ground of the steps of a derivation: the recurrence, its numbers, and excerpts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from archc.derivation.maths import Math, named
from archc.derivation.page import Checked, Excerpt, Mark
from archc.recurrence.affine.form import MATRIX, NormalForm
from archc.source import Span
from archc.verify.checks import Check
from archc.verify.study import Study
from archc.verify.trial import Trial


@dataclass(frozen=True, eq=False)
class Telling:
    """One recurrence, and an instance of it with numbers."""

    study: Study
    trial: Trial

    @property
    def states(self) -> list[Math]:
        """The states by name."""
        return [named(state.name) for state in self.study.recurrence.states]

    @property
    def matrices(self) -> list[NormalForm]:
        """The groups of states that are matrices with rank-one writes."""
        return [form for form in self.forms if form.kind == MATRIX]

    @property
    def forms(self) -> list[NormalForm]:
        """The groups that are computed in chunks."""
        derived = self.study.derived
        others = {name for each in (*derived.kept, *derived.laws) for name in each.states}
        return [form for form in derived.forms if not others & set(form.states)]

    def run(self, checks: Iterable[Check]) -> Iterator[Checked]:
        """Checks, run."""
        yield from self.measured(checks, self.trial.sizes_text())

    @staticmethod
    def measured(checks: Iterable[Check], sizes: str) -> Iterator[Checked]:
        """Checks, run with such sizes where they say no others."""
        for check in checks:
            yield Checked(check.what, check.sizes or sizes, check.error(), check.limit)


def excerpt(span: Span, marked: Iterable[Span] = (), fault: bool = False) -> Excerpt:
    """The lines of a span; of the marked spans within it, the characters."""
    source, first = span.source, span.line
    last = source.position(max(span.start, span.end - 1))[0]
    lines = [source.line(number).rstrip() for number in range(first, last + 1)]
    indent = min((len(text) - len(text.lstrip()) for text in lines if text), default=0)
    marks = [
        Mark(line - first, max(0, low - indent), high - indent, fault)
        for each in marked
        for line, low, high in _columns(each)
        if first <= line <= last
    ]
    return Excerpt(source.name, first, tuple(text[indent:] for text in lines), tuple(marks))


def _columns(span: Span) -> Iterator[tuple[int, int, int]]:
    """The part of a span in each of its lines: line, first column and the one after, from 0."""
    source = span.source
    line, column = source.position(span.start)
    last, end = source.position(max(span.start, span.end - 1))
    for number in range(line, last + 1):
        text = source.line(number).rstrip()
        low = column - 1 if number == line else len(text) - len(text.lstrip())
        yield number, low, end if number == last else len(text)


def joined(parts: Iterable[Math | str]) -> list[Math | str]:
    """`a`, `a and b`, `a, b and c`."""
    listed = list(parts)
    found: list[Math | str] = []
    for number, part in enumerate(listed):
        between = " and " if number == len(listed) - 1 else ", "
        found += [between, part] if number else [part]
    return found
