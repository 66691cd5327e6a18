"""Emission of dims that are joined or counted otherwise, and of runs: views where torch has
them."""

from __future__ import annotations

from archc.backends.eager.scope import Scope
from archc.backends.eager.value import DATA, Value
from archc.backends.expression import ATOM, Text, call
from archc.backends.index import permuted

from archc.dims import Axis
from archc.ir import layer as ir
from archc.ir.graph import Graph, Node


def join(scope: Scope, node: Node) -> Value:
    """`torch.cat([a, b], -1)`; `join_along(-1, a, b)` where one is expanded along dims of
    another."""
    layout, into = scope.node_layout(node), node.op.into.name
    values = [scope.value(operand) for operand in node.operands]
    if node.type.dtype == "real":
        values = [scope.as_data(scope.real(value)) for value in values]
    place = layout.index(into)
    at = str(place - len(layout) if place == len(layout) - 1 else place)
    texts, alike = list[Text](), True
    for name, value in zip(node.op.axes, values, strict=True):
        have = [into if own == name else own for own in value.layout]
        texts.append(_with_every_dim(value.text, have, layout))
        alike = alike and set(have) == set(layout)
    kind = DATA if node.type.dtype == "real" else values[0].kind
    if alike:
        listed = ", ".join(text.text for text in texts)
        return Value(call("torch.cat", f"[{listed}]", at), layout, kind)
    return Value(call("join_along", at, *texts), layout, kind)


def _with_every_dim(text: Text, have: list[str], layout: tuple[str, ...]) -> Text:
    """A value with its dims in order, and one of length 1 for each that it lacks."""
    moved = permuted(text, have, [name for name in layout if name in have])
    marks = [":" if name in have else "None" for name in layout]
    if "None" not in marks:
        return moved
    return Text(f"{moved.at(ATOM)}[{', '.join(marks)}]")


def reshape(scope: Scope, node: Node) -> Value:
    """`x.unflatten(-1, (H, K))`, `x.flatten(2, 3)`, or both."""
    value, op = scope.value(node.operands[0]), node.op
    first = min(value.layout.index(name) for name in op.axes)
    rest = [name for name in value.layout if name not in op.axes]
    place = sum(name not in op.axes for name in value.layout[:first])
    text = permuted(value.text, value.layout, [*rest[:place], *op.axes, *rest[place:]])
    if len(op.axes) > 1:
        text = call(f"{text.at(ATOM)}.flatten", str(place), str(place + len(op.axes) - 1))
    if len(op.into) > 1:
        sizes = ", ".join(scope.length(axis).text for axis in op.into)
        text = call(f"{text.at(ATOM)}.unflatten", str(place), f"({sizes})")
    have = [*rest[:place], *(axis.name for axis in op.into), *rest[place:]]
    return scope.settled(node, text, have, value.kind)


def run_of(scope: Scope, node: Node) -> tuple[Text, Axis] | None:
    """Where a gather begins that reads the entries of a dim one after the other, and the axis that
    it reads along; None for any other gather."""
    found = _start(scope.graph, node.operands[1])
    if found is None or found[1].kind != "dim":
        return None
    start, axis = found
    return (Text("0") if start is None else scope.number(start)), axis


def _start(graph: Graph, index: int) -> tuple[object, Axis] | None:
    """`index[N] + n` as (n, N)."""
    op = graph[index].op
    if isinstance(op, ir.Position):
        return None, op.axis
    if op != ir.Elementwise("add"):
        return None
    ops = [graph[operand].op for operand in graph[index].operands]
    for one, other in (ops, ops[::-1]):
        if isinstance(one, ir.Position) and isinstance(other, ir.Constant):
            return other.value, one.axis
    return None
