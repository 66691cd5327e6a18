"""Layer IR -> SVG: a picture of a layer that a person can read.

One box a statement (see `outline.py`), laid out in layers. The file needs nothing from outside: no
script, no font to load; it stands on its own light ground, so that it reads the same on any page.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

from archc.ir import layer as ir
from archc.ir.layout import Key, Layout, Spacing, lay_out
from archc.ir.outline import Box, Edge, Outline, outline
from archc.ir.text import arg_text

FONT = "ui-monospace, 'SF Mono', Menlo, Consolas, 'DejaVu Sans Mono', monospace"
CHAR, LINE = 7.3, 17.0  # advance of a character and height of a line at 12 px
SMALL_CHAR, SMALL_LINE = 6.2, 14.0  # the same at 10 px
PAD = 10.0
MARGIN = 22.0
STRETCH = (700.0, 800.0, 900.0, 1000.0)  # how wide a layer of boxes may be; all are tried
STEM = 20.0  # straight piece of an edge, behind its label
LIMITS = (46, 66)  # longest line of a statement in characters; both are tried
BLOCK_LIMIT = 84  # the same for a statement with a body

FRAMED = ("memory", "block")
"""Kinds of boxes with a body: drawn with a strong frame."""

FILLS = {
    "input": ("#eef1f5", "#b6bfca"),
    "value": ("#ffffff", "#c4cbd3"),
    "call": ("#eef4fe", "#86abe6"),
    "block": ("#eef4fe", "#86abe6"),
    "memory": ("#fff7e3", "#dfa928"),
    "output": ("#ebf7ef", "#6db58a"),
}
"""Fill and border of a box, by kind."""

GROUND = "#fbfcfd"
STYLE = """
text { font: 12px %s; fill: #1f2430; white-space: pre; }
.title { font-size: 14px; font-weight: 700; }
.doc, .small, .label { fill: #69727f; }
.small, .label { font-size: 10px; }
.name { font-weight: 700; }
.word { font-weight: 700; fill: #9a5b00; }
.edge { fill: none; stroke: #8d97a3; stroke-width: 1.3; }
""".strip()
WORDS = re.compile(
    r"\b(recurrence|attend|index|over|grouped|in|ending|all|route|weight|blocks|of|every|repeat|as)\b"
)
TARGET = re.compile(r"(\s*)((?:output )?)([\w', ]+?)(?=(\[[^\]]*\])?(?:\s*=[^=]|$))")


@dataclass(frozen=True)
class _Card:
    """A box with its text broken into lines, and its size."""

    box: Box
    lines: tuple[str, ...]
    params: tuple[str, ...]
    width: float
    height: float


def as_svg(layer: ir.Layer) -> str:
    """The picture of a layer, in the direction and width that fit a page best."""
    sketch = outline(layer)
    forms = [(True, STRETCH[-1]), *((False, stretch) for stretch in STRETCH)]
    drawings = (_Drawing(layer, sketch, *form, limit) for limit in LIMITS for form in forms)
    return min(drawings, key=lambda drawing: drawing.awkwardness).svg()


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
        # an operator begins the next line rather than end this one
        best = min(places, key=lambda at: (depth[at], text[at - 1] in "=+-*/@", -at))
        lines.append(text[:best])
        text = indent + text[best + 1 :]
    return [*lines, text]


def _args(layer: ir.Layer) -> str:
    return ", ".join(arg_text(arg) for arg in layer.args)


def _doc_lines(doc: str) -> list[str]:
    """The first line of a docstring, and its source if it names one."""
    lines = [line.strip() for line in doc.strip().splitlines()]
    return [*lines[:1], *[line for line in lines[1:] if line.startswith("source:")][:1]]


def _card(box: Box, limit: int) -> _Card:
    limit = BLOCK_LIMIT if box.kind in FRAMED else limit
    lines = [part for line in box.lines for part in wrapped(line, limit)]
    columns = max(len(line) for line in lines)
    params = _joined(box.params, max(34, int(columns * CHAR / SMALL_CHAR)))
    width = max(columns * CHAR, max(map(len, params), default=0) * SMALL_CHAR) + 2 * PAD
    height = len(lines) * LINE + len(params) * SMALL_LINE + 2 * PAD - 4 + (3 if params else 0)
    return _Card(box, tuple(lines), params, width, height)


def _joined(items: Sequence[str], limit: int) -> tuple[str, ...]:
    """Items side by side, in lines of at most `limit` characters."""
    lines: list[str] = []
    for item in items:
        if lines and len(lines[-1]) + len(item) + 3 <= limit:
            lines[-1] += " · " + item
        else:
            lines.append(item)
    return tuple(lines)


class _Drawing:
    """An outline laid out in one direction."""

    def __init__(
        self,
        layer: ir.Layer,
        outline: Outline,
        rightwards: bool,
        stretch: float,
        limit: int,
    ):
        self.layer, self.outline = layer, outline
        self.rightwards = rightwards
        self.cards = {box.id: _card(box, limit) for box in outline.boxes}
        sizes = {
            id: (card.width, card.height) if self.rightwards else (card.height, card.width)
            for id, card in self.cards.items()
        }
        longest = max((len(edge.label) for edge in outline.edges), default=0) * SMALL_CHAR
        if self.rightwards:
            spacing = Spacing(max(52.0, longest + 40), 16.0, 14.0, stretch)
        else:
            spacing = Spacing(62.0, 26.0, 18.0, stretch)
        self.layout: Layout = lay_out(sizes, [(e.tail, e.head) for e in outline.edges], spacing)
        if self.rightwards:  # boxes of a column are equally wide
            thick = {id: self.layout.thickness[self.layout.layer[id]] for id in sizes}
            sizes = {id: (thick[id], size[1]) for id, size in sizes.items()}
        self.sizes = sizes
        tops = [self.layout.centre[id] - size[1] / 2 for id, size in sizes.items()]
        ends = [self.layout.centre[id] + size[1] / 2 for id, size in sizes.items()]
        tops += self.layout.centre.values()
        self.v0 = min(tops)
        across = max([*ends, *self.layout.centre.values()]) - self.v0
        along = self.layout.starts[-1] + self.layout.thickness[-1]
        inner, outer = (along, across) if self.rightwards else (across, along)
        self.header = wrapped(f"{layer.kind} {layer.name}({_args(layer)})", 84, ",")
        self.title = [*self.header, *_doc_lines(layer.doc)]
        titles = max(len(text) for text in self.header) * CHAR * 1.17
        titles = max(titles, max(len(text) for text in self.title) * CHAR)
        self.width = max(inner, titles) + 2 * MARGIN
        self.left = (self.width - inner) / 2
        self.top = MARGIN + LINE * len(self.title) + 14
        self.height = outer + self.top + MARGIN

    @property
    def awkwardness(self) -> float:
        """How far the picture exceeds a page; then its area and how many statements are broken."""
        broken = sum(len(card.lines) - len(card.box.lines) for card in self.cards.values())
        excess = max(1.0, self.width / 950, self.height / 900)
        return excess + self.width * self.height / 2e6 + 0.02 * broken

    # --- places ---

    def corner(self, id: int) -> tuple[float, float]:
        """Flow coordinates of a box's first corner."""
        number = self.layout.layer[id]
        slack = (self.layout.thickness[number] - self.sizes[id][0]) / 2
        return self.layout.starts[number] + slack, self.layout.centre[id] - self.sizes[id][1] / 2

    def at(self, u: float, v: float) -> tuple[float, float]:
        """Picture coordinates of a point in flow coordinates."""
        x, y = (u, v - self.v0) if self.rightwards else (v - self.v0, u)
        return x + self.left, y + self.top

    def ports(self) -> tuple[dict[Edge, float], dict[Edge, float]]:
        """Where each edge leaves its tail and enters its head, across the flow."""
        leave: dict[Edge, float] = {}
        enter: dict[Edge, float] = {}
        for box in self.outline.boxes:
            outgoing = [edge for edge in self.outline.edges if edge.tail == box.id]
            incoming = [edge for edge in self.outline.edges if edge.head == box.id]
            groups: dict[str, list[Edge]] = {}
            for edge in sorted(outgoing, key=lambda e: self.layout.centre[self.hops(e)[1]]):
                groups.setdefault(edge.label, []).append(edge)
            step = (
                18.0 if self.rightwards else max((len(x) for x in groups), default=0) * SMALL_CHAR
            )
            places = self.spread(box.id, len(groups), step + 12)
            for place, edges in zip(places, groups.values(), strict=True):
                leave |= dict.fromkeys(edges, place)
            incoming.sort(key=lambda e: self.layout.centre[self.hops(e)[-2]])
            places = self.spread(box.id, len(incoming), 18.0 if self.rightwards else 46.0)
            enter |= zip(incoming, places, strict=True)
        return leave, enter

    def hops(self, edge: Edge) -> tuple[Key, ...]:
        """The keys an edge runs through, both ends included."""
        return (edge.tail, *self.layout.passes[edge.tail, edge.head], edge.head)

    def spread(self, id: int, count: int, step: float) -> list[float]:
        """`count` places on a side of a box, around its middle."""
        step = min(step, (self.sizes[id][1] - 16) / max(1, count - 1))
        return [self.layout.centre[id] + (n - (count - 1) / 2) * step for n in range(count)]

    # --- drawing ---

    def svg(self) -> str:
        """The file."""
        width, height = round(self.width), round(self.height)
        leave, enter = self.ports()
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
            f'viewBox="0 0 {width} {height}" role="img" aria-label="{_text(self.title[0], True)}">',
            f"<style>{STYLE % FONT}</style>",
            '<defs><marker id="arrow" markerWidth="8" markerHeight="8" refX="6.5" refY="3.5" '
            'orient="auto"><path d="M0,0.5 L7,3.5 L0,6.5 z" fill="#8d97a3"/></marker></defs>',
            f'<rect x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="10" '
            f'fill="{GROUND}" stroke="#dfe3e8"/>',
        ]
        for number, line in enumerate(self.title):
            name = "title" if number < len(self.header) else "doc"
            parts.append(_line(MARGIN, MARGIN + LINE * number + 12, name, _text(line)))
        parts += [self.edge(edge, leave[edge], enter[edge]) for edge in self.outline.edges]
        parts += self.labels(leave)
        parts += [part for card in self.cards.values() for part in self.card(card)]
        return "\n".join([*parts, "</svg>"]) + "\n"

    def edge(self, edge: Edge, leave: float, enter: float) -> str:
        """A smooth line from box to box, straight where it passes a layer."""
        u, v = self.corner(edge.tail)[0] + self.sizes[edge.tail][0], leave
        path = [f"M{_point(self.at(u, v))}"]
        if edge.label and not self.rightwards:
            u += STEM
            path.append(f"L{_point(self.at(u, v))}")
        for key in self.hops(edge)[1:]:
            if isinstance(key, int):
                path.append(self.curve(u, v, self.corner(key)[0], enter))
            else:
                start, centre = self.layout.starts[key[2]], self.layout.centre[key]
                path.append(self.curve(u, v, start, centre))
                u, v = start + self.layout.thickness[key[2]], centre
                path.append(f"L{_point(self.at(u, v))}")
        return f'<path class="edge" marker-end="url(#arrow)" d="{" ".join(path)}"/>'

    def curve(self, u: float, v: float, to_u: float, to_v: float) -> str:
        """A cubic from one point to another that starts and ends along the flow."""
        half = (u + to_u) / 2
        points = self.at(half, v), self.at(half, to_v), self.at(to_u, to_v)
        return "C" + " ".join(_point(point) for point in points)

    def labels(self, leave: dict[Edge, float]) -> list[str]:
        """The shape of what leaves a box, on its line, once for each place it leaves from."""
        places: dict[tuple[float, float], str] = {}
        for edge, v in leave.items():
            places[self.at(self.corner(edge.tail)[0] + self.sizes[edge.tail][0], v)] = edge.label
        parts: list[str] = []
        for (x, y), label in places.items():
            width = len(label) * SMALL_CHAR + 6
            left, middle = (x + 4, y) if self.rightwards else (x - width / 2, y + STEM / 2 + 2)
            if label:
                parts.append(
                    f'<rect x="{left:.1f}" y="{middle - 7:.1f}" width="{width:.1f}" height="14" '
                    f'rx="3" fill="{GROUND}"/>'
                )
                parts.append(_line(left + 3, middle + 3.5, "label", _text(label)))
        return parts

    def card(self, card: _Card) -> list[str]:
        """A box and its text."""
        u, v = self.corner(card.box.id)
        x, y = self.at(u, v)
        du, dv = self.sizes[card.box.id]
        width, height = (du, dv) if self.rightwards else (dv, du)
        fill, stroke = FILLS[card.box.kind]
        weight = 1.8 if card.box.kind in FRAMED else 1.1
        title = f"<title>{_text(card.box.where)}</title>" if card.box.where else ""
        parts = [
            f'<g>{title}<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" '
            f'rx="6" fill="{fill}" stroke="{stroke}" stroke-width="{weight}"/>'
        ]
        y += PAD + 10
        for number, line in enumerate(card.lines):
            parts.append(_line(x + PAD, y, "", _marked(line, card.box.kind, number == 0)))
            y += LINE
        for line in card.params:
            parts.append(_line(x + PAD, y, "small", _text(line)))
            y += SMALL_LINE
        parts[-1] += "</g>"
        return parts


def _marked(line: str, kind: str, first: bool) -> str:
    """A line with the name it gives set bold, and the words of a block's header coloured."""
    if kind in FRAMED and first:
        return WORDS.sub(r'<tspan class="word">\1</tspan>', _text(line))
    target = TARGET.match(line)
    if not target or not (first or kind in FRAMED):
        return _text(line)
    lead, word, name = target[1], target[2], target[3]
    word = f'<tspan class="word">{word}</tspan>' if word else ""
    rest = _text(line[target.end() :])
    return f'{lead}{word}<tspan class="name">{_text(name)}</tspan>{rest}'


def _line(x: float, y: float, name: str, content: str) -> str:
    """One line of text; leading spaces become distance."""
    bare = content.lstrip(" ")
    x += (len(content) - len(bare)) * CHAR
    style = f' class="{name}"' if name else ""
    return f'<text x="{x:.1f}" y="{y:.1f}"{style} xml:space="preserve">{bare}</text>'


def _point(point: tuple[float, float]) -> str:
    return f"{point[0]:.1f},{point[1]:.1f}"


def _text(text: str, attribute: bool = False) -> str:
    return escape(text, {'"': "&quot;"} if attribute else {})
