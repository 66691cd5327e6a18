"""Layer IR -> SVG: a picture of a layer that a person can read.

One box a statement (see `outline.py`), laid out in layers. The file needs nothing from outside: no
script, no font to load; it stands on its own light ground, so that it reads the same on any page.
"""

from __future__ import annotations

import re
import textwrap
from xml.sax.saxutils import escape

from archc.ir import layer as ir
from archc.ir.layout import Key, Layout, Spacing, lay_out
from archc.ir.outline import Edge, Outline, outline
from archc.ir.text import arg_text
from archc.ir.typeset import CHAR, FRAMED, LINE, PAD, SMALL_CHAR, SMALL_LINE, Card, card, wrapped

FONT = "ui-monospace, 'SF Mono', Menlo, Consolas, 'DejaVu Sans Mono', monospace"
MARGIN = 22.0
STRETCH = (700.0, 800.0, 900.0, 1000.0)  # how wide a layer of boxes may be; all are tried
STEM = 20.0  # straight piece of an edge, behind its label
LIMITS = (46, 66)  # longest line of a statement in characters; both are tried
MANY = 60  # boxes beyond which no picture fits a page, so that trying is not worth its time

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
KEYWORDS = (
    "recurrence attend index route blocks repeat over grouped in ending all weight of every as"
)
WORDS = re.compile(rf"\b({KEYWORDS.replace(' ', '|')})\b")
TARGET = re.compile(r"(\s*)((?:output )?)([\w', ]+?)(?=(\[[^\]]*\])?(?:\s*=[^=]|$| along ))")


def as_svg(layer: ir.Layer) -> str:
    """The picture of a layer, in the direction and width that fit a page best."""
    sketch = outline(layer)
    forms = [(True, STRETCH[-1]), *((False, stretch) for stretch in STRETCH)]
    tries = [(*form, limit) for limit in LIMITS for form in forms]
    if len(sketch.boxes) > MANY:
        tries = tries[-1:]
    drawings = (_Drawing(layer, sketch, *each) for each in tries)
    return min(drawings, key=lambda drawing: drawing.awkwardness).svg()


def _args(layer: ir.Layer) -> str:
    return ", ".join(arg_text(arg) for arg in layer.args)


def _doc_lines(doc: str) -> list[str]:
    """The first sentence of a docstring, and its source if it names one."""
    text, colon, source = " ".join(doc.split()).partition("source:")
    shown = [re.split(r"(?<=\.)\s", text.strip(), maxsplit=1)[0], colon + source]
    return [part for line in shown for part in textwrap.wrap(line, 120)]


class _Drawing:
    """An outline laid out in one direction."""

    def __init__(
        self, layer: ir.Layer, outline: Outline, rightwards: bool, stretch: float, limit: int
    ):
        self.outline, self.rightwards = outline, rightwards
        self.cards = {box.id: card(box, limit) for box in outline.boxes}
        self.layout, self.sizes = self.lay_out(stretch)
        self.header = wrapped(f"{layer.kind} {layer.name}({_args(layer)})", 84, ",")
        self.title = [*self.header, *_doc_lines(layer.doc)]
        self.measure()

    def lay_out(self, stretch: float) -> tuple[Layout, dict[int, tuple[float, float]]]:
        """The layout, and the size of each box in flow coordinates."""
        sizes = {
            id: (card.width, card.height) if self.rightwards else (card.height, card.width)
            for id, card in self.cards.items()
        }
        longest = max((len(edge.label) for edge in self.outline.edges), default=0) * SMALL_CHAR
        if self.rightwards:
            spacing = Spacing(max(52.0, longest + 40), 16.0, 14.0, stretch)
        else:
            spacing = Spacing(62.0, 26.0, 18.0, stretch)
        layout = lay_out(sizes, [(e.tail, e.head) for e in self.outline.edges], spacing)
        if self.rightwards:  # boxes of a column are equally wide
            thick = {id: layout.thickness[layout.layer[id]] for id in sizes}
            sizes = {id: (thick[id], size[1]) for id, size in sizes.items()}
        return layout, sizes

    def measure(self) -> None:
        """Set the size of the picture, and where its drawing starts."""
        centre = self.layout.centre
        halves = {key: self.sizes[key][1] / 2 if isinstance(key, int) else 0 for key in centre}
        self.v0 = min(centre[key] - half for key, half in halves.items())
        across = max(centre[key] + half for key, half in halves.items()) - self.v0
        along = self.layout.starts[-1] + self.layout.thickness[-1]
        inner, outer = (along, across) if self.rightwards else (across, along)
        bold = max(map(len, self.header)) * CHAR * 14 / 12
        self.width = max(inner, bold, max(map(len, self.title)) * CHAR) + 2 * MARGIN
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
        """The places where each edge leaves its tail and enters its head, across the flow."""
        leave: dict[Edge, float] = {}
        enter: dict[Edge, float] = {}
        for box in self.outline.boxes:
            outgoing = [edge for edge in self.outline.edges if edge.tail == box.id]
            incoming = [edge for edge in self.outline.edges if edge.head == box.id]
            groups: dict[str, list[Edge]] = {}
            for edge in sorted(outgoing, key=lambda e: self.layout.centre[self.hops(e)[1]]):
                groups.setdefault(edge.label, []).append(edge)
            longest = max(map(len, groups), default=0) * SMALL_CHAR
            places = self.spread(box.id, len(groups), 30.0 if self.rightwards else longest + 12)
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
        parts += [part for card in self.cards.values() for part in self.box(card)]
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

    def box(self, card: Card) -> list[str]:
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
    if kind in FRAMED and WORDS.match(line):
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
