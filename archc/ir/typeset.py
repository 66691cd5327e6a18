"""Text of boxes: broken into lines, and measured in pixels of a picture."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from archc.ir.outline import Box

CHAR, LINE = 7.3, 17.0  # advance of a character and height of a line at 12 px
SMALL_CHAR, SMALL_LINE = 6.2, 14.0  # the same at 10 px
PAD = 10.0
BLOCK_LIMIT = 84  # longest line of a statement with a body, in characters
FRAMED = ("memory", "block")
"""Kinds of boxes whose statement has a body."""


@dataclass(frozen=True)
class Card:
    """A box with its text broken into lines, and its size."""

    box: Box
    lines: tuple[str, ...]
    params: tuple[str, ...]
    width: float
    height: float


def card(box: Box, limit: int) -> Card:
    """A box whose lines have at most about `limit` characters."""
    limit = BLOCK_LIMIT if box.kind in FRAMED else limit
    lines = [part for line in box.lines for part in wrapped(line, limit)]
    columns = max(len(line) for line in lines)
    params = _joined(box.params, max(34, int(columns * CHAR / SMALL_CHAR)))
    width = max(columns * CHAR, max(map(len, params), default=0) * SMALL_CHAR) + 2 * PAD
    height = len(lines) * LINE + len(params) * SMALL_LINE + 2 * PAD - 4 + (3 if params else 0)
    return Card(box, tuple(lines), params, width, height)


def wrapped(text: str, limit: int, after: str = "") -> list[str]:
    """The text in lines of at most `limit` characters, broken where brackets are shallow.

    `after` allows breaks after one character only.
    """
    lines: list[str] = []
    indent = " " * (len(text) - len(text.lstrip()) + 4)
    while len(text) > limit + 6:  # a few characters more are better than a line of a few
        places = [m.start() for m in re.finditer(r"(?<=\S) ", text[: limit + 1])]
        places = [at for at in places if at > limit // 3 and text[at - 1].endswith(after)]
        if not places:
            break
        depth = {at: sum((c in "([") - (c in ")]") for c in text[:at]) for at in places}
        named = {at: depth[at] > 0 and "=" in (text[at - 1], text[at + 1]) for at in places}
        # `name = value` stays together; an operator begins the next line rather than end this one
        best = min(places, key=lambda at: (named[at], depth[at], text[at - 1] in "=+-*/@", -at))
        lines.append(text[:best])
        text = indent + text[best + 1 :]
    return [*lines, text]


def _joined(items: Sequence[str], limit: int) -> tuple[str, ...]:
    """Items side by side, in lines of at most `limit` characters."""
    lines: list[str] = []
    for item in items:
        if lines and len(lines[-1]) + len(item) + 3 <= limit:
            lines[-1] += " · " + item
        else:
            lines.append(item)
    return tuple(lines)
