"""The parts of a derivation's page: steps, each with a title and blocks. Data only."""

from __future__ import annotations

from dataclasses import dataclass

from archc.derivation.maths import Math
from archc.source import Span

PARALLEL, SEQUENTIAL = "parallel", "sequential"
"""Tones: what is computed for all chunks at once, and what waits from chunk to chunk."""

Inline = str | Math
"""Words (with `code` in backquotes) or a formula within a sentence."""


@dataclass(frozen=True)
class Para:
    """Sentences."""

    parts: tuple[Inline, ...]


@dataclass(frozen=True)
class Formula:
    """A formula on a line of its own, with a remark beside it; `tone` colours it."""

    math: Math
    note: str = ""
    tone: str = ""


@dataclass(frozen=True)
class Mark:
    """The characters `start` to `end` (exclusive) of a line of an excerpt, all from 0; a `fault`
    stands in the way of something."""

    line: int
    start: int
    end: int
    fault: bool = False


@dataclass(frozen=True)
class Excerpt:
    """Lines of the spec from `first` on, of which some characters are marked."""

    file: str
    first: int
    lines: tuple[str, ...]
    marks: tuple[Mark, ...] = ()


@dataclass(frozen=True)
class Table:
    """A table with a head; cells are words or formulas."""

    head: tuple[str, ...]
    rows: tuple[tuple[Inline, ...], ...]


@dataclass(frozen=True)
class Picture:
    """An SVG, the same drawn with characters, and what it shows in words."""

    svg: str
    text: str
    caption: str


@dataclass(frozen=True)
class Listing:
    """Text as it is, which a reader opens if interested."""

    title: str
    text: str


@dataclass(frozen=True)
class Checked:
    """A numeric check that was run: what was compared, for which sizes, and the relative error."""

    what: str
    sizes: str
    error: float
    limit: float

    @property
    def right(self) -> bool:
        """Whether the error is small enough; not a number is not."""
        return self.error <= self.limit

    @property
    def shown(self) -> str:
        """The error in words: below which limit, so that a page is the same on every machine."""
        if not self.right:
            return f"WRONG: a relative error of {self.error:.1e}, above {_power(self.limit)}"
        return f"relative error below {_power(self.limit)}"


def _power(limit: float) -> str:
    """`1e-4`."""
    return f"{limit:.0e}".replace("e-0", "e-")


Block = Para | Formula | Excerpt | Table | Picture | Listing | Checked


@dataclass(frozen=True)
class Step:
    """One step: a title, its blocks, and where in the spec it comes from (`my.arch:18`)."""

    title: str
    blocks: tuple[Block, ...]
    span: Span | None = None
    place: str = ""

    @property
    def where(self) -> str:
        """File and line, if there is one."""
        return self.span.where if self.span is not None else self.place


@dataclass(frozen=True)
class Chapter:
    """The steps of one recurrence, or of the layer as a whole."""

    title: str
    steps: tuple[Step, ...]
    span: Span | None = None


@dataclass(frozen=True)
class Page:
    """A derivation: `about` is a line on the layer, `source` the paper that it cites."""

    title: str
    about: str
    source: str
    intro: tuple[Block, ...]
    chapters: tuple[Chapter, ...]

    @property
    def checks(self) -> tuple[Checked, ...]:
        """Every check of the page."""
        blocks = (b for c in self.chapters for s in c.steps for b in s.blocks)
        return tuple(b for b in blocks if isinstance(b, Checked))

    @property
    def wrong(self) -> tuple[Checked, ...]:
        """The checks that failed."""
        return tuple(check for check in self.checks if not check.right)


def para(*parts: Inline) -> Para:
    """Sentences from words and formulas."""
    return Para(parts)
