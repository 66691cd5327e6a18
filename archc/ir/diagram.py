"""Layer IR -> the languages of two diagram tools: DOT (Graphviz) and Mermaid."""

from __future__ import annotations

from archc.ir import layer as ir
from archc.ir.outline import Box, outline
from archc.ir.picture import FILLS

PLAIN = " _=+-/@*()[],.:'·"
"""Characters, beside letters and digits, that mean themselves in a Mermaid label."""


def as_dot(layer: ir.Layer) -> str:
    """The outline of a layer for Graphviz: `dot -Tsvg`."""
    sketch = outline(layer)
    lines = [
        f"digraph {_quoted(layer.name)} {{",
        '  node [shape=box, style="rounded,filled", fontname=monospace, fontsize=11];',
        "  edge [fontname=monospace, fontsize=9];",
    ]
    for box in sketch.boxes:
        label = "".join(f"{_escaped(line)}\\l" for line in _lines(box))
        fill, border = FILLS[box.kind]
        lines.append(f'  {_name(box.id)} [label="{label}", fillcolor="{fill}", color="{border}"];')
    for edge in sketch.edges:
        label = f" [label={_quoted(edge.label)}]" if edge.label else ""
        lines.append(f"  {_name(edge.tail)} -> {_name(edge.head)}{label};")
    return "\n".join([*lines, "}"]) + "\n"


def as_mermaid(layer: ir.Layer) -> str:
    """The outline of a layer for Mermaid, which many sites draw from Markdown."""
    sketch = outline(layer)
    lines = ["flowchart TD"]
    for box in sketch.boxes:
        label = "<br/>".join(_entities(line) for line in _lines(box))
        lines.append(f'  {_name(box.id)}["{label}"]:::{box.kind}')
    for edge in sketch.edges:
        label = f'|"{_entities(edge.label)}"|' if edge.label else ""
        lines.append(f"  {_name(edge.tail)} -->{label} {_name(edge.head)}")
    for kind in dict.fromkeys(box.kind for box in sketch.boxes):
        fill, border = FILLS[kind]
        lines.append(f"  classDef {kind} fill:{fill},stroke:{border},color:#1f2430")
    return "\n".join(lines) + "\n"


def _lines(box: Box) -> list[str]:
    """Text of a box, its parameters last."""
    return [*box.lines, *([" · ".join(box.params)] if box.params else [])]


def _name(id: int) -> str:
    """A name of a box that both tools accept; boxes added for outputs have negative ids."""
    return f"n{id}" if id >= 0 else f"out{-id}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')


def _quoted(text: str) -> str:
    return f'"{_escaped(text)}"'


def _entities(text: str) -> str:
    """Text for a quoted label, in which no character can be read as Mermaid or HTML."""
    bare = text.lstrip(" ")
    shown = "".join(char if char.isalnum() or char in PLAIN else f"#{ord(char)};" for char in bare)
    return "#160;" * (len(text) - len(bare)) + shown
