"""How a mistake is recorded and shown.

`Diagnostic` is one finding, `Report` collects those of one run, `ArchError` carries them to whoever
called. One dataclass feeds the terminal, JSON and editors.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

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
    """Collects the findings of one run, so that one mistake does not hide the next."""

    diagnostics: list[Diagnostic] = field(default_factory=list)

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

        Raises ArchError itself when there have been MOST_FINDINGS.
        """
        self.diagnostics.append(
            Diagnostic(
                code,
                message,
                Label(span, label) if span else None,
                tuple(Label(s, text) for s, text in others if s),
                tuple(notes),
                tuple(helps),
            )
        )
        if len(self.diagnostics) >= MOST_FINDINGS:
            self.check()
        return Refused(message)

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


def did_you_mean(name: str, known: Iterable[str]) -> tuple[str, ...]:
    """A help line that names the nearest known name, or nothing."""
    names = sorted(set(known))
    if len(names) > MOST_NAMES:
        return ()
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    return (f"did you mean `{near[0]}`?",) if near else ()


def render(finding: Diagnostic) -> str:
    """A finding with its source lines and carets, in plain text."""
    lines = [f"{finding.severity}[{finding.code}]: {finding.message}"]
    labels = [label for label in (finding.label, *finding.others) if label]
    width = max((len(str(label.span.line)) for label in labels), default=1)
    if finding.label:
        span = finding.label.span
        lines.append(f"{' ' * width}--> {span.source.name}:{span.line}:{span.column}")
    lines += _excerpts(finding, labels, width)
    lines += [f"{' ' * width} = note: {note}" for note in finding.notes]
    lines += [f"{' ' * width} = help: {text}" for text in finding.helps]
    return "\n".join(lines)


def _excerpts(finding: Diagnostic, labels: Sequence[Label], width: int) -> list[str]:
    """The labelled source lines, each once, in order; one of another file gets its own arrow."""
    if finding.label is None:
        return []
    lines: list[str] = [" " * width + " |"]
    home, last = finding.label.span.source, 0
    here = [label for label in labels if label.span.source is home]
    for label in sorted(here, key=lambda label: (label.span.line, label.span.start)):
        if label.span.line != last:
            if last and label.span.line > last + 1:
                lines.append("." * width)
            lines.append(f"{label.span.line:>{width}} | {_shown(home.line(label.span.line))}")
        last = label.span.line
        lines.append(" " * width + " | " + _marks(label, "^" if label is finding.label else "-"))
    for label in labels:
        if label.span.source is not home:
            source = label.span.source
            lines.append(f"{' ' * width}--> {source.name}:{label.span.line}:{label.span.column}")
            lines.append(f"{label.span.line:>{width}} | {_shown(source.line(label.span.line))}")
            lines.append(" " * width + " | " + _marks(label, "-"))
    return [*lines, " " * width + " |"] if finding.notes or finding.helps else lines


def _shown(line: str, limit: int = 160) -> str:
    """A source line that cannot disturb a terminal: no control characters, bounded length."""
    text = "".join(
        char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in line[: limit + 1]
    )
    return text if len(text) <= limit else text[:limit] + "…"


def _marks(label: Label, mark: str) -> str:
    """Carets under the part of the span that lies on its first line."""
    line = label.span.source.line(label.span.line)
    room = max(1, len(line) - label.span.column + 1)
    length = max(1, min(label.span.end - label.span.start, room, 160))
    return f"{' ' * min(label.span.column - 1, 160)}{mark * length} {label.text}".rstrip()
