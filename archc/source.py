"""The source of text: `Source` is a named text, `Span` a stretch of it."""

from __future__ import annotations

import bisect
import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True, eq=False)
class Source:
    """A spec's text and the name it is shown under: a path, `<stdin>`, or a bundled `name.arch`."""

    name: str
    text: str

    @cached_property
    def starts(self) -> tuple[int, ...]:
        """Offset of the first character of each line."""
        starts = [0]
        for i, char in enumerate(self.text):
            if char == "\n":
                starts.append(i + 1)
        return tuple(starts)

    def position(self, offset: int) -> tuple[int, int]:
        """1-based line and column of an offset."""
        line = bisect.bisect_right(self.starts, offset)
        return line, offset - self.starts[line - 1] + 1

    def line(self, number: int) -> str:
        """Text of a 1-based line, without its newline."""
        start = self.starts[number - 1]
        end = self.text.find("\n", start)
        return (self.text[start:] if end < 0 else self.text[start:end]).rstrip("\r")

    @cached_property
    def sha256(self) -> str:
        """Hash of the text, printed into generated files."""
        return hashlib.sha256(self.text.encode("utf-8", "surrogatepass")).hexdigest()


@dataclass(frozen=True, eq=False)
class Span:
    """The characters `start` to `end` (exclusive) of a source."""

    source: Source
    start: int
    end: int

    @property
    def line(self) -> int:
        """1-based line where the span starts."""
        return self.source.position(self.start)[0]

    @property
    def column(self) -> int:
        """1-based column where the span starts."""
        return self.source.position(self.start)[1]

    @property
    def text(self) -> str:
        """The characters themselves."""
        return self.source.text[self.start : self.end]

    @property
    def where(self) -> str:
        """`my.arch:21`, as generated code cites it."""
        return f"{self.source.name}:{self.line}"

    def holds(self, other: Span) -> bool:
        """Whether another span lies in this one."""
        return self.source is other.source and self.start <= other.start and other.end <= self.end

    def to(self, other: Span) -> Span:
        """The stretch from this span's start to the other's end."""
        return Span(self.source, self.start, max(self.end, other.end))


def lines_of(spans: Iterable[Span]) -> list[str]:
    """The lines of specs that spans begin in, in order: `kda.arch:15  beta = sigmoid(...)`."""
    found = dict[tuple[str, int], str]()
    for span in spans:
        text = span.text.partition("\n")[0].partition("#")[0]
        found[span.source.name, span.line] = f"{span.where}  {text.strip()}"
    return [found[place] for place in sorted(found)]
