"""Layer IR -> outline: the layer as its author would sketch it, one box a statement of the spec.

What stands in one statement is one box, labelled with the spec's own text; parameters are listed in
the boxes that use them; a recurrence or an attention is a box with its formulas. Pictures
(`picture.py`, `diagram.py`) draw an outline and know nothing about ops.
"""

from __future__ import annotations

import heapq
import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from archc.dims import axes_text
from archc.ir import layer as ir
from archc.ir.graph import Graph, Node, Type
from archc.ir.text import op_text, value_names
from archc.source import Span

Kind = Literal["input", "value", "call", "block", "memory", "output"]


BLOCK = re.compile(r"(repeat|route|blocks)\b")
"""How a statement starts that has a body but is no op of its own."""

REGION = re.compile(r"(recurrence|attend|index)\b")
"""How the statement of a Recurrence or an Attend starts."""


@dataclass(frozen=True)
class Box:
    """A statement: its text, the parameters it reads (`W_q [d, H, K]`), and where it stands."""

    id: int
    kind: Kind
    lines: tuple[str, ...]
    params: tuple[str, ...] = ()
    where: str | None = None


@dataclass(frozen=True)
class Edge:
    """Values that one box hands to another; `label` gives their shapes, per token."""

    tail: int
    head: int
    label: str = ""


@dataclass(frozen=True)
class Outline:
    """Boxes in dataflow order and the edges between them."""

    boxes: tuple[Box, ...]
    edges: tuple[Edge, ...]


def outline(layer: ir.Layer) -> Outline:
    """The outline of a layer. Layers that it calls stay closed."""
    return _Sketch(layer).outline()


def shape_text(type: Type) -> str:
    """`[H, K]`, the shape per token; `[e] along m` for another sequence than the layer's own."""
    streams = [axis.name for axis in type.axes if axis.kind == "stream" and axis.name != "t"]
    if not streams:
        return axes_text(type.axes)
    return f"{axes_text(type.axes).removesuffix('[]')} along {', '.join(streams)}".lstrip()


class _Sketch:
    """Finds for each value of a layer the box it belongs to."""

    def __init__(self, layer: ir.Layer):
        self.layer, self.graph = layer, layer.graph
        self.nodes = list(layer.graph)
        self.names = value_names(layer.graph)
        self.static = self.find_static()
        self.home, self.blocks = self.settle(self.find_blocks())
        self.order = self.ordered()
        if not self.order:
            self.home, self.blocks = self.settle({})
            self.order = self.ordered()

    def is_head(self, node: Node[ir.Op]) -> bool:
        """Whether a box is named after this value: a statement, or a value from outside."""
        if isinstance(node.op, (ir.Input, ir.Recurrence, ir.Attend)):
            return True
        if isinstance(node.op, ir.Param) or node.name is None:
            return False
        return node.span is None or node.span.source is self.layer.source

    def find_static(self) -> set[int]:
        """Parameters, constants and what is made of them alone, outside of statements."""
        static: set[int] = set()
        for node in self.nodes:
            if not self.is_head(node) and static.issuperset(node.operands):
                static.add(node.id)
        return static

    def find_blocks(self) -> dict[int, Span]:
        """The statement with a body of its own that a value was written in, such as a `repeat`."""
        spans = [node.span for node in self.nodes if node.span and self.quotable(node)]
        blocks = {(span.start, span.end): span for span in spans if BLOCK.match(span.text)}
        found: dict[int, Span] = {}
        for node in self.nodes:
            if node.span is None or node.id in self.static or not self.quotable(node):
                continue
            for (start, end), span in sorted(blocks.items(), reverse=True):  # the outermost is last
                if start <= node.span.start and node.span.end <= end:
                    found[node.id] = span
        return found

    def settle(self, block_of: Mapping[int, Span]) -> tuple[dict[int, int], dict[int, Span]]:
        """For each value the box of the statement it is part of, and the boxes that are blocks."""
        home: dict[int, int] = {}
        blocks: dict[int, Span] = {}
        statements: dict[object, int] = {}
        outputs = set(self.graph.outputs.values())
        for node in reversed(self.nodes):
            readers = {home[user] for user in self.graph.users(node.id) if user in home}
            owner = self.graph[node.operands[0]] if isinstance(node.op, ir.Result) else None
            if node.id in self.static:
                continue
            if node.id in block_of:
                span = block_of[node.id]
                home[node.id] = statements.setdefault(("block", span.start), node.id)
                blocks[home[node.id]] = span
            elif owner and isinstance(owner.op, (ir.Recurrence, ir.Attend)):
                home[node.id] = owner.id
            elif self.is_head(node):
                # `a, b, c = e by 3` is one statement with three names: one box
                key = (node.span.start, node.operands[:1]) if node.span else node.id
                home[node.id] = statements.setdefault(key, node.id)
            elif len(readers) == 1 and node.id not in outputs:
                home[node.id] = readers.pop()
            else:
                home[node.id] = node.id
        return home, blocks

    def ordered(self) -> list[int]:
        """The boxes in dataflow order; empty if blocks as one box each would form a cycle."""
        readers: dict[int, set[int]] = {box: set() for box in self.home.values()}
        for node in self.nodes:
            for operand in node.operands:
                if node.id in self.home and operand in self.home:
                    readers[self.home[operand]].add(self.home[node.id])
        missing = dict.fromkeys(readers, 0)
        for tail, heads in readers.items():
            heads.discard(tail)
            for head in heads:
                missing[head] += 1
        ready = [box for box, count in missing.items() if count == 0]
        heapq.heapify(ready)
        order: list[int] = []
        while ready:
            order.append(heapq.heappop(ready))
            for head in readers[order[-1]]:
                missing[head] -= 1
                if missing[head] == 0:
                    heapq.heappush(ready, head)
        return order if len(order) == len(readers) else []

    def outline(self) -> Outline:
        """All boxes and edges."""
        members: dict[int, list[Node[ir.Op]]] = {}
        for node in self.nodes:
            if node.id in self.home:
                members.setdefault(self.home[node.id], []).append(node)
        boxes = [self.box(head, members[head]) for head in self.order]
        edges = self.edges()
        for name, id in self.graph.outputs.items():
            pill, home = self.output(name, id, -1 - len(boxes))
            if pill and home:
                boxes.append(pill)
                edges.append(home)
        return Outline(tuple(boxes), tuple(edges))

    def output(self, name: str, id: int, free: int) -> tuple[Box | None, Edge | None]:
        """A box for an output that has no statement of its own (`output h`)."""
        node = self.graph[id]
        if id not in self.home or (node.span and node.span.text.startswith("output")):
            return None, None
        box = Box(free, "output", (f"output {name}",))
        return box, Edge(self.home[id], free, shape_text(node.type))

    def box(self, head: int, members: Sequence[Node[ir.Op]]) -> Box:
        """The box of a statement."""
        node = self.graph[head]
        where = node.span.where if node.span else None
        if isinstance(node.op, ir.Input):
            shape = shape_text(node.op.type).removesuffix("[]")
            text = node.op.name + (" " if shape.startswith("along") else "") + shape
            return Box(head, "input", (text,), where=where)
        params = tuple(self.params(members))
        if head in self.blocks:
            span = self.blocks[head]
            return Box(head, "block", statement_lines(span), params, span.where)
        if isinstance(node.op, (ir.Recurrence, ir.Attend)):
            return Box(head, "memory", region_lines(node), params, where)
        lines = statement_lines(node.span) if self.quotable(node) else (self.spelled(node),)
        is_call = any(isinstance(member.op, ir.Call) for member in members)
        kind: Kind = "output" if lines[0].startswith("output ") else "call" if is_call else "value"
        return Box(head, kind, lines, params, where)

    def quotable(self, node: Node[ir.Op]) -> bool:
        """Whether the spec's own text can label the value."""
        return node.span is not None and node.span.source is self.layer.source

    def spelled(self, node: Node[ir.Op]) -> str:
        """A label made from the op, where there is no text to quote."""
        text = op_text(node.op, tuple(self.names[id] for id in node.operands))
        return text if node.name is None else f"{node.name} = {text}"

    def params(self, members: Sequence[Node[ir.Op]]) -> list[str]:
        """Parameters that the members read, directly or through static values, in spec order."""
        ids = {id for member in members for id in member.operands if id in self.static}
        for id in tuple(ids):
            ids |= self.graph.ancestors(id)
        nodes = (self.graph[id] for id in sorted(ids))
        return [f"{n.op.name}{axes_text(n.op.axes)}" for n in nodes if isinstance(n.op, ir.Param)]

    def edges(self) -> list[Edge]:
        """One edge for each pair of boxes; several values share it."""
        shapes: dict[tuple[int, int], dict[int, str]] = {}
        for node in self.nodes:
            for operand in node.operands:
                ends = self.home.get(operand), self.home.get(node.id)
                if ends[0] is not None and ends[1] is not None and ends[0] != ends[1]:
                    shapes.setdefault((ends[0], ends[1]), {})[operand] = self.label(operand)
        return [
            Edge(*ends, ", ".join(dict.fromkeys(labels.values())))
            for ends, labels in shapes.items()
        ]

    def label(self, id: int) -> str:
        """Shape of a value, with its name if it leaves a body; an input shows its own."""
        node = self.graph[id]
        if isinstance(node.op, ir.Input):
            return ""
        box = self.graph[self.home[id]]
        lines: tuple[str, ...] = ()
        if box.id in self.blocks:
            lines = statement_lines(self.blocks[box.id])
        elif isinstance(box.op, (ir.Recurrence, ir.Attend)):
            lines = region_lines(box)
        written = any(line.strip().startswith(f"{node.name} =") for line in lines)
        return f"{node.name} {shape_text(node.type)}" if written else shape_text(node.type)


def statement_lines(span: Span | None) -> tuple[str, ...]:
    """The lines of a span: comments dropped, alignment undone, indented as they stand."""
    if span is None:
        return ()
    column = span.column - 1
    text = textwrap.dedent(" " * column + span.text)
    lines = (re.sub(r"\s*#.*", "", line) for line in text.splitlines())
    return tuple(re.sub(r"(?<=\S) {2,}", " ", line).rstrip() for line in lines if line.strip())


def region_lines(node: Node[ir.Op]) -> tuple[str, ...]:
    """The statement that made a Recurrence or an Attend, and its formulas.

    Where another layer's memory is called, that is the call and the formulas of the callee; without
    a text, what the body computes.
    """
    lines = statement_lines(node.span)
    if node.span is None:
        return (op_text(node.op), *_spelled_body(node))
    if REGION.match(lines[0]):
        return lines
    start = node.span.source.starts[node.span.line - 1]
    call = statement_lines(Span(node.span.source, start, node.span.end))
    return (*call, *(f"    {line}" for line in _body_statements(node)))


def _body_statements(node: Node[ir.Op]) -> list[str]:
    """The statements that named the values of a body, in the order of the text."""
    body: Graph[ir.Op] = node.op.body  # type: ignore[union-attr]
    spans = {n.span.start: n.span for n in body if n.name and n.operands and n.span}
    return [line for _, span in sorted(spans.items()) for line in statement_lines(span)]


def _spelled_body(node: Node[ir.Op]) -> list[str]:
    """The ops of a body, one a line."""
    body: Graph[ir.Op] = node.op.body  # type: ignore[union-attr]
    names = value_names(body)
    return [
        f"    {names[n.id]} = {op_text(n.op, tuple(names[id] for id in n.operands))}"
        for n in body
        if n.operands
    ]
