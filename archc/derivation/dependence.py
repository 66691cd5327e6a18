"""A picture of what waits for what in a chunked form."""

from __future__ import annotations

from html import escape

from archc.derivation.page import Picture

CHUNKS = 4
WIDTH, HEIGHT, LEFT, GAP = 116, 40, 16, 44
ROWS = (14, 90, 166)


def dependence(before: str, along: str, after: str) -> Picture:
    """Four chunks: what is computed of each before the state arrives, with it, and after it."""
    texts = (before, along, after)
    parts = []
    for y, text, tone in zip(ROWS, texts, ("p", "s", "p"), strict=True):
        for n in range(CHUNKS):
            parts.append(_box(LEFT + 40 + n * (WIDTH + GAP), y, text, tone))
    for n in range(CHUNKS):
        x = LEFT + 40 + n * (WIDTH + GAP)
        for top, bottom in ((ROWS[0], ROWS[1]), (ROWS[1], ROWS[2])):
            parts.append(_arrow(x + WIDTH / 2, top + HEIGHT, x + WIDTH / 2, bottom))
    middle = ROWS[1] + HEIGHT / 2
    for n in range(CHUNKS + 1):
        x = LEFT + 40 + n * (WIDTH + GAP)
        parts.append(_arrow(x - GAP, middle, x, middle, "s"))
    width = LEFT * 2 + 80 + CHUNKS * (WIDTH + GAP) - GAP
    svg = (
        f'<svg class="dependence" viewBox="0 0 {width} 220" role="img" '
        f'aria-label="what waits for what">{"".join(parts)}</svg>'
    )
    caption = (
        "Four chunks. Above and below (green): all of them at once. In the middle (orange): one"
        " after the other."
    )
    return Picture(svg, _drawn(texts), caption)


def _box(x: float, y: float, text: str, tone: str) -> str:
    size = 13 if len(text) <= 15 else 11 if len(text) <= 20 else 9
    return (
        f'<rect class="{tone}" x="{x:g}" y="{y:g}" width="{WIDTH}" height="{HEIGHT}" rx="6"/>'
        f'<text x="{x + WIDTH / 2:g}" y="{y + HEIGHT / 2 + 4:g}" font-size="{size}"'
        f' text-anchor="middle">{escape(text)}</text>'
    )


def _arrow(x1: float, y1: float, x2: float, y2: float, tone: str = "n") -> str:
    """A line with a head."""
    across = x2 != x1
    tip = (
        f"{x2 - 7:g},{y2 - 4:g} {x2 - 7:g},{y2 + 4:g}"
        if across
        else f"{x2 - 4:g},{y2 - 7:g} {x2 + 4:g},{y2 - 7:g}"
    )
    return (
        f'<line class="{tone}" x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}"/>'
        f'<polygon class="{tone}" points="{x2:g},{y2:g} {tip}"/>'
    )


def _drawn(texts: tuple[str, str, str]) -> str:
    """The same with characters."""
    width = max(map(len, texts)) + 2
    box = "[{}]"
    before, after = (
        "     " + "   ".join(box.format(text.center(width)) for _ in range(CHUNKS))
        for text in (texts[0], texts[2])
    )
    along = " --> " + "-->".join(box.format(texts[1].center(width)) for _ in range(CHUNKS)) + "-->"
    down = "     " + "   ".join("|".center(width + 2) for _ in range(CHUNKS))
    return "\n".join(line.rstrip() for line in (before, down, along, down, after))
