"""Emission of one graph into the body of one function: what becomes a line, and what stays inside one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import sympy

from archc.backends.eager.fusion import Fused, fuse
from archc.backends.eager.value import BOOL, DATA, INT, NUMBER, WIDE, Value
from archc.backends.expression import ATOM, Text, call, number, whole
from archc.backends.index import aligned, permuted
from archc.backends.writer import COLUMNS, INDENT, Names, Writer
from archc.dims import Axis
from archc.ir import layer as ir
from archc.ir.graph import Graph, Node

Emitters = Mapping[type, Callable[["Scope", Node], Value]]

HINTS = {ir.Window: "window", ir.Gather: "taken", ir.Top: "chosen", ir.Softmax: "weights"}
"""What an intermediate value is called, after the named value that it goes into."""


class Scope:
    """A function under construction: its lines, its names, and the values emitted so far.

    `like` names a tensor of the function that has the dtype and device of the data. `sizes` says how
    each size symbol is written here; `lengths` how long each stream axis is, `starts` the position of
    its first token.
    """

    def __init__(self, graph: Graph, emitters: Emitters, pieces: set[str], like: str, names: Names):
        self.graph, self.emitters, self.pieces, self.like = graph, emitters, pieces, like
        self.names = names
        self.writer = Writer()
        self.sizes: dict[str, str] = {}
        self.lengths: dict[str, str] = {}
        self.starts: dict[str, str] = {}
        self.values: dict[int, Value] = {}
        self.results: dict[int, dict[str, Value]] = {}
        self.positions: dict[str, str] = {}
        self.head: list[str] = []
        self.asked: set[str] = set()
        self.fused: dict[int, Fused] = fuse(graph)
        self.uses = self._count_uses()
        self.training = "self.training"
        self.pairs: tuple[str, str] | None = None
        self.suffix: Mapping[int, str] = {}

    def _count_uses(self) -> dict[int, int]:
        """How often each value is written down, patterns that become one call counted once."""
        uses = dict.fromkeys((node.id for node in self.graph), 0)
        seen, waiting = set(), list(self.graph.outputs.values())
        for id in waiting:
            uses[id] += 1
        while waiting:
            id = waiting.pop()
            if id in seen:
                continue
            seen.add(id)
            for operand in self.operands(id):
                uses[operand] += 1
                waiting.append(operand)
        return uses

    def operands(self, id: int) -> tuple[int, ...]:
        """Operands of a node, those of the whole pattern if it is one."""
        return self.fused[id].operands if id in self.fused else self.graph[id].operands

    # --- values ---

    def value(self, id: int) -> Value:
        """The value of a node, emitted when it is first needed."""
        if id not in self.values:
            node = self.graph[id]
            value = self._fitting(node)
            self.values[id] = value
            if self._deserves_a_line(node, value):
                self.bind(id)
        return self.values[id]

    def _fitting(self, node: Node) -> Value:
        """The node's expression; its longest operands get lines of their own until it fits into one."""
        value = self.emit(node)
        while len(value.text.text) > COLUMNS - 3 * len(INDENT) - len(node.name or "") - 4:
            inner = [i for i in self.operands(node.id) if i in self.values and not self.values[i].bound]
            if not inner:
                break
            self.bind(max(inner, key=lambda i: len(self.values[i].text.text)))
            value = self.emit(node)
        return value

    def emit(self, node: Node) -> Value:
        """The node's expression."""
        if node.id in self.fused:
            return self.fused[node.id].emit(self, node)
        return self.emitters[type(node.op)](self, node)

    def _deserves_a_line(self, node: Node, value: Value) -> bool:
        if value.bound or not value.text.text or value.kind == NUMBER:
            return False
        return node.name is not None or self.uses[node.id] > 1

    def bind(self, id: int) -> None:
        """Give a value a line and a name; later uses write the name."""
        node, value = self.graph[id], self.values[id]
        name = self.names.fresh(self.hint(node) + self.suffix.get(id, ""))
        self.writer.line(f"{name} = {value.text}", self.shape_note(value))
        self.values[id] = Value(Text(name), value.layout, value.kind)

    def hint(self, node: Node) -> str:
        """The node's name, or one made from the named value that it goes into."""
        if node.name is not None:
            return node.name
        fn = node.op.fn if isinstance(node.op, ir.Elementwise | ir.Reduce) else None
        kind = HINTS.get(type(node.op)) or fn or "part"
        if isinstance(node.op, ir.Contract):
            params = any(isinstance(self.graph[o].op, ir.Param) for o in node.operands)
            kind = "proj" if params else "dot"
        return f"{self.target(node.id)}_{kind}"

    def target(self, id: int) -> str:
        """The name of the nearest named value that this one goes into."""
        seen, row = {id}, [id]
        while row:
            for user in row:
                named = self.graph[user].name
                if named is not None:
                    return named
                found = [name for name, output in self.graph.outputs.items() if output == user]
                if found:
                    return found[0]
            row = sorted({u for user in row for u in self.graph.users(user)} - seen)
            seen |= set(row)
        return "value"

    # --- shapes ---

    def layout(self, axes: Sequence[Axis]) -> tuple[str, ...]:
        """The order of a value's dims: that of its type, with reader and read last in a pair's body."""
        names = tuple(axis.name for axis in axes)
        if self.pairs is None or not set(self.pairs) <= set(names):
            return names
        return (*(name for name in names if name not in self.pairs), *self.pairs)

    def node_layout(self, node: Node) -> tuple[str, ...]:
        """The same for a node's value."""
        return self.layout(node.type.axes)

    def at(self, id: int, layout: Sequence[str]) -> Text:
        """A value's text, ready to broadcast against a tensor of that layout."""
        value = self.value(id)
        return value.text if value.kind == NUMBER else aligned(value.text, value.layout, layout)

    def shape_note(self, value: Value) -> str:
        """`[B, T, H, K]`: the comment behind a line."""
        return shape_text(value.layout) if value.layout and value.kind != NUMBER else ""

    def ask(self, name: str) -> str:
        """A name that the head of the function defines if anything asks for it."""
        self.asked.add(name)
        return name

    def position(self, axis: Axis) -> str:
        """The positions of a sequence's tokens here, a line at the head of the function."""
        if axis.name not in self.positions:
            name = self.positions[axis.name] = self.names.fresh(axis.name)
            count = f"torch.arange({self.length(axis)}, device={self.device})"
            start = self.starts[axis.name]
            for asked in ("pos", "T", "S"):
                if asked in start.replace("(", " ").replace(")", " ").split():
                    self.ask(asked)
            self.head.append(f"{name} = {start} + {count}" if start != "0" else f"{name} = {count}")
        return self.positions[axis.name]

    def per_token(self, id: int, stream: str) -> Value:
        """A value laid out [B, T, ...] along a sequence, as what looks along it needs it."""
        value = self.value(id)
        value = self.as_data(self.real(value)) if value.kind == NUMBER else value
        rest = [name for name in value.layout if name not in ("batch", stream)]
        text = permuted(value.text, value.layout, [n for n in ("batch", stream, *rest) if n in value.layout])
        if "batch" not in value.layout:
            text = call(f"{text.at(ATOM)}.expand", self.ask(self.lengths["batch"]), *["-1"] * len(value.layout))
        return Value(text, ("batch", stream, *rest), value.kind)

    def length(self, axis: Axis) -> Text:
        """How long an axis is here."""
        if axis.name in self.lengths:
            return Text(self.ask(self.lengths[axis.name]))
        return self.size(axis.size)

    def size(self, expr: sympy.Expr) -> Text:
        """A size as an integer expression."""
        return whole(expr, self._reach(expr))

    def number(self, expr: sympy.Expr) -> Text:
        """A constant in sizes and options."""
        return number(expr, self._reach(expr))

    def _reach(self, expr: Any) -> dict[str, str]:
        names = sorted(symbol.name for symbol in expr.free_symbols)
        return {name: self.ask(self.sizes.get(name, name)) for name in names}

    # --- dtypes ---

    @property
    def dtype(self) -> str:
        """The dtype of the data."""
        return f"{self.like}.dtype"

    @property
    def device(self) -> str:
        """The device of the data."""
        return f"{self.like}.device"

    def real(self, value: Value) -> Value:
        """An integer or truth value as a real of at least float32."""
        if value.kind not in (INT, BOOL):
            return value
        wide = self.ask("wide")
        return Value(Text(f"{value.text.at(ATOM)}.to({wide})"), value.layout, WIDE)

    def as_data(self, value: Value) -> Value:
        """A tensor in the dtype of the data, as products of tensors need."""
        if value.kind in (DATA, NUMBER):
            return value
        return Value(Text(f"{value.text.at(ATOM)}.to({self.dtype})"), value.layout, DATA)

    def joined(self, values: Sequence[Value]) -> tuple[list[Value], str]:
        """Operands of a real-valued function in dtypes that agree, and the kind of its result.

        What is made from positions alone keeps its precision until it meets a value per token.
        """
        values = [self.real(value) for value in values]
        kinds = {value.kind for value in values} - {NUMBER}
        if not kinds:
            return values, NUMBER
        if kinds == {DATA, WIDE}:
            tokens = any(v.kind == DATA and "batch" in v.layout for v in values)
            return ([self.as_data(v) for v in values], DATA) if tokens else (values, WIDE)
        return values, kinds.pop()


def shape_text(layout: Sequence[str]) -> str:
    """`[B, T, H, K]`; streams are written in capitals."""
    streams = {"batch": "B", "t": "T", "s": "S"}
    return "[" + ", ".join(streams.get(name, name) for name in layout) + "]"
