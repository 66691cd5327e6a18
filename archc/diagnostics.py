"""How a mistake is recorded and shown.

`Diagnostic` is one finding, `Report` collects those of one run, `ArchError` carries them to whoever
called. One dataclass feeds the terminal, JSON and editors.
"""

from __future__ import annotations

import difflib
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

from archc.source import Span

MOST_FINDINGS = 40
"""After so many findings a run gives up: more would not be read, and a spec may hold thousands."""

MOST_NAMES = 1000
"""Among more names than these, none is looked for that is near to a misspelt one."""


@dataclass(frozen=True)
class Label:
    """A remark under a span."""

    span: Span
    text: str


IN_CALL, CALLED = "in this call", "called here"
"""Remarks under a call, where the mistake is in what it gives, or in what it calls."""


@dataclass(frozen=True)
class Diagnostic:
    """One finding: a code, a message, where, why, and what to do about it."""

    code: str
    message: str
    label: Label | None = None
    others: tuple[Label, ...] = ()
    notes: tuple[str, ...] = ()
    helps: tuple[str, ...] = ()
    severity: str = "error"

    def __post_init__(self) -> None:
        object.__setattr__(self, "others", tuple(self.others))
        object.__setattr__(self, "notes", tuple(self.notes))
        object.__setattr__(self, "helps", tuple(self.helps))

    def at_call(self, call: Span) -> Diagnostic:
        """The finding at the call that it comes from, and where in what is called it was found."""
        if self.label is None or self._called:
            return self
        inside = Label(self.label.span, self.label.text or "found here")
        others = (each for each in self.others if not call.holds(each.span))
        return replace(self, label=Label(call, IN_CALL), others=(inside, *others))

    def called_from(self, call: Span) -> Diagnostic:
        """The finding where it is, and the call that led there."""
        if self.label is None or self._called:
            return self
        return replace(self, others=(*self.others, Label(call, CALLED)))

    def also(self, span: Span) -> Diagnostic:
        """The finding, and another place where it is the same."""
        known = [each.span for each in (self.label, *self.others) if each]
        if any((each.source, each.start) == (span.source, span.start) for each in known):
            return self
        return replace(self, others=(*self.others, Label(span, "here too")))

    @property
    def _called(self) -> bool:
        """Whether a call is shown already: the nearest is enough."""
        shown = [each for each in (self.label, *self.others) if each is not None]
        return any(each.text in (IN_CALL, CALLED) for each in shown)

    def render(self) -> str:
        """The finding as a terminal shows it, without colour."""
        return render(self)

    def as_json(self) -> dict[str, object]:
        """The finding as plain data: code, message, positions (1-based), notes and helps."""

        def place(label: Label) -> dict[str, object]:
            line, column = label.span.source.position(label.span.start)
            end_line, end_column = label.span.source.position(label.span.end)
            return {
                "file": label.span.source.name,
                "line": line,
                "column": column,
                "end_line": end_line,
                "end_column": end_column,
                "text": label.text,
            }

        return {
            "code": self.code,
            "severity": self.severity,
            "message": self.message,
            "label": place(self.label) if self.label else None,
            "others": [place(label) for label in self.others],
            "notes": list(self.notes),
            "helps": list(self.helps),
        }


class ArchError(Exception):
    """A spec, a size or an argument that archc refuses, as one or more diagnostics."""

    def __init__(self, diagnostics: Iterable[Diagnostic]):
        self.diagnostics = tuple(diagnostics)
        super().__init__("\n\n".join(d.render() for d in self.diagnostics))


class ArchWarning(UserWarning):
    """Something about a spec that is right, but may not be meant."""


class InternalError(Exception):
    """Something that archc promised itself does not hold: its bug, never the user's mistake."""

    def __init__(self, text: str):
        super().__init__(
            f"{text}\n"
            "This is a bug in archc, not in your spec. Please open an issue with this text, the "
            "command you ran and the spec, so that it can be fixed."
        )


class Refused(Exception):
    """Raised after a finding has been reported: give up this statement, go on with the rest."""


@dataclass
class Report:
    """Collects the findings of one run, so that one mistake does not hide the next; at most so
    many."""

    diagnostics: list[Diagnostic] = field(default_factory=list)
    most: int = MOST_FINDINGS

    def error(
        self,
        code: str,
        message: str,
        span: Span | None = None,
        label: str = "",
        others: Sequence[tuple[Span | None, str]] = (),
        notes: Sequence[str] = (),
        helps: Sequence[str] = (),
    ) -> Refused:
        """Record an error and return the exception to raise: `raise report.error(...)`.

        Raises ArchError itself when there have been as many as it takes.
        """
        return self.add(
            Diagnostic(
                code,
                message,
                Label(span, label) if span else None,
                tuple(labels(others)),
                tuple(notes),
                tuple(helps),
            )
        )

    def add(self, found: Diagnostic) -> Refused:
        """Record a finding, as `error` does."""
        self.diagnostics.append(found)
        if len(self.diagnostics) >= self.most:
            self.check()
        return Refused(found.message)

    def check(self) -> None:
        """Raise `ArchError` with everything collected, if anything was, in source order."""
        if self.diagnostics:
            unique = {
                (d.code, d.message, d.label and d.label.span.start): d for d in self.diagnostics
            }
            raise ArchError(
                sorted(unique.values(), key=lambda d: d.label.span.start if d.label else -1)
            )


def fail(
    code: str, message: str, span: Span | None = None, label: str = "", **more: Sequence
) -> ArchError:
    """An `ArchError` with a single finding: `raise fail("E0001", ...)`."""
    report = Report()
    report.error(code, message, span, label, **more)
    return ArchError(report.diagnostics)


def labels(places: Iterable[tuple[Span | None, str]]) -> Iterator[Label]:
    """Remarks at those places that are known."""
    return (Label(span, text) for span, text in places if span)


def did_you_mean(name: str, known: Iterable[str]) -> tuple[str, ...]:
    """A help line that names the nearest known name, or nothing."""
    names = sorted(set(known))
    if len(names) > MOST_NAMES:
        return ()
    plain = name.lower().replace("_", "")
    same = [each for each in names if each.lower().replace("_", "") == plain]
    near = same or difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    if not same and len(name) <= 3:  # of three letters, another one is no misprint
        near = [each for each in near if each in name or name in each]
    return (f"did you mean `{near[0]}`?",) if near else ()


def render(finding: Diagnostic) -> str:
    """A finding with its source lines and carets, in plain text."""
    lines = [f"{finding.severity}[{finding.code}]: {visible(finding.message)}"]
    labels = [label for label in (finding.label, *finding.others) if label]
    width = max((len(str(label.span.line)) for label in labels), default=1)
    if finding.label:
        span = finding.label.span
        lines.append(f"{' ' * width}--> {span.source.name}:{span.line}:{span.column}")
    lines += _excerpts(finding, labels, width)
    lines += [f"{' ' * width} = note: {visible(note)}" for note in finding.notes]
    lines += [f"{' ' * width} = help: {visible(text)}" for text in finding.helps]
    return "\n".join(lines)


def _excerpts(finding: Diagnostic, labels: Sequence[Label], width: int) -> list[str]:
    """The labelled source lines, each once, in order; those of another file below an arrow."""
    if finding.label is None:
        return []
    lines: list[str] = [" " * width + " |"]
    home = finding.label.span.source
    lines += _of_file([label for label in labels if label.span.source is home], finding, width)
    for other in dict.fromkeys(label.span.source for label in labels):
        if other is not home:
            there = [label for label in labels if label.span.source is other]
            at = there[0].span
            lines.append(f"{' ' * width}--> {other.name}:{at.line}:{at.column}")
            lines += _of_file(there, finding, width)
    return [*lines, " " * width + " |"] if finding.notes or finding.helps else lines


def _of_file(labels: Sequence[Label], finding: Diagnostic, width: int) -> list[str]:
    """The labelled lines of one file, with their marks."""
    lines, last = list[str](), 0
    ordered = sorted(labels, key=lambda label: (label.span.line, label.span.start))
    for line, group in groupby(ordered, key=lambda label: label.span.line):
        here = [*group]
        excerpt = _Excerpt.around(finding.label if finding.label in here else here[0])
        if last and line > last + 1:
            lines.append("." * width)
        lines.append(f"{line:>{width}} | {excerpt.shown}")
        for label in here:
            lines.append(" " * width + " | " + excerpt.marks(label, finding.label is label))
        last = line
    return lines


# --- a source line on a terminal ------------------------------------------------------------------

MOST_SHOWN = 160
"""Most characters of a source line that are shown."""


@dataclass(frozen=True)
class _Excerpt:
    """A source line from its character `start` up to `end`, as a terminal shows it."""

    line: str
    start: int
    end: int

    @classmethod
    def around(cls, label: Label | None) -> _Excerpt:
        """The line of a label: whole, or the part of a long one that the label is in."""
        assert label is not None
        line = label.span.source.line(label.span.line)
        if len(line) <= MOST_SHOWN:
            return cls(line, 0, len(line))
        start = max(0, min(label.span.column - 1 - MOST_SHOWN // 4, len(line) - MOST_SHOWN))
        return cls(line, start, start + MOST_SHOWN)

    @property
    def before(self) -> str:
        """The mark for characters left out in front: an ellipsis, or nothing."""
        return "…" if self.start else ""

    @property
    def shown(self) -> str:
        """The text, without anything that a terminal would not show or would act upon."""
        after = "…" if self.end < len(self.line) else ""
        return self.before + visible(self.line[self.start : self.end]) + after

    def marks(self, label: Label, primary: bool) -> str:
        """Marks under the part of a label that lies here, and its text."""
        first = min(max(label.span.column - 1, self.start), self.end)
        last = min(first + label.span.end - label.span.start, self.end)
        while first > self.start and first < len(self.line) and not cells(self.line[first]):
            first -= 1  # a mark above or below a letter is shown with its letter
        indent = cells(self.before + visible(self.line[self.start : first]))
        length = max(1, cells(visible(self.line[first:last])))
        mark = "^" if primary else "-"
        return f"{' ' * indent}{mark * length} {visible(label.text)}".rstrip()


TAB = "→   "
"""How a tab is shown: wherever it stands, as wide as an indentation."""


def visible(text: str) -> str:
    """A text in which everything can be seen: tabs, spaces of other kinds, control characters."""
    return "".join(
        TAB if char == "\t" else char if char.isprintable() else f"<U+{ord(char):04X}>"
        for char in text
    )


def cells(text: str) -> int:
    """How many cells of a terminal a text takes: two for wide letters, none for marks on them."""
    return sum(
        0
        if unicodedata.category(char) in ("Mn", "Me")
        else 2
        if unicodedata.east_asian_width(char) in ("W", "F")
        else 1
        for char in text
    )
