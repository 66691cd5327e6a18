"""What a page of a derivation is made of: steps, each with a title and blocks. Data only."""

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
class Excerpt:
    """Lines of the spec from `first` on, of which some are marked."""

    file: str
    first: int
    lines: tuple[str, ...]
    marked: tuple[int, ...] = ()


@dataclass(frozen=True)
class Table:
    """A table with a head; cells are words or formulas."""

    head: tuple[str, ...]
    rows: tuple[tuple[Inline, ...], ...]


@dataclass(frozen=True)
class Picture:
    """An SVG, and what it shows in words."""

    svg: str
    caption: str


@dataclass(frozen=True)
class Checked:
    """A numeric check that was run: what was compared, for which sizes, and the relative error."""

    what: str
    sizes: str
    error: float
    limit: float

    @property
    def right(self) -> bool:
        """Whether the error is small enough."""
        return self.error <= self.limit

    @property
    def shown(self) -> str:
        """The error in words: what is below rounding is called that, so that pages stay the same
        from machine to machine."""
        if not self.right:
            return f"WRONG: {self.error:.1e}"
        return "below 1e-12" if self.error < 1e-12 else f"below {self.limit:.0e}"


Block = Para | Formula | Excerpt | Table | Picture | Checked


@dataclass(frozen=True)
class Step:
    """One step: a title, where in the spec it comes from, and its blocks."""

    title: str
    blocks: tuple[Block, ...]
    span: Span | None = None


@dataclass(frozen=True)
class Chapter:
    """The steps of one recurrence, or of the layer as a whole."""

    title: str
    steps: tuple[Step, ...]


@dataclass(frozen=True)
class Page:
    """A derivation."""

    title: str
    about: str
    chapters: tuple[Chapter, ...]


def para(*parts: Inline) -> Para:
    """Sentences from words and formulas."""
    return Para(parts)
