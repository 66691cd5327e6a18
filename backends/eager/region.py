"""The common part of the functions of recurrences and of attentions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import sympy
from archc.backends.eager.scope import Scope
from archc.backends.eager.value import DATA, Value, shape_text
from archc.backends.expression import Text
from archc.backends.writer import identifier

from archc.dims import Axis
from archc.ir import chunk as ck
from archc.ir import layer as ir
from archc.ir.graph import Graph, Node


def wanted_results(scope: Scope, node: Node) -> list[str]:
    """The results of a region that something reads, in the order of its body; a state after the
    last token alone is none."""
    graph, live = scope.graph, set()
    for user in graph.users(node.id):
        readers = [graph[reader] for reader in graph.users(user) if reader in scope.uses]
        ends = all(ends_with(node, graph[user].op.name, reader) for reader in readers)
        if user in scope.uses and not (readers and ends and user not in graph.outputs.values()):
            live.add(graph[user].op.name)
    return [name for name in node.op.body.outputs if name in live]


def ends_with(owner: Node, name: str, reader: Node) -> bool:
    """Whether the reader of a region's result takes only what a state is after the last token."""
    recurrence, op = owner.op, reader.op
    if not isinstance(recurrence, ir.Recurrence) or not isinstance(op, ck.Last):
        return False
    along = op.stream == recurrence.stream.name and op.reverse == recurrence.reverse
    return along and any(state.name == name for state in recurrence.states)


def reads_last(graph: Graph, node: Node, name: str) -> bool:
    """Whether something takes what a state of a recurrence is after the last token."""
    results = [user for user in graph.users(node.id) if graph[user].op.name == name]
    readers = [graph[reader] for result in results for reader in graph.users(result)]
    return any(ends_with(node, name, reader) for reader in readers)


def in_spec_order(scope: Scope, node: Node, names: Sequence[str]) -> list[str]:
    """Captures in the order in which the spec defines what they stand for; last, what is the same
    for every token."""

    def place(name: str) -> tuple[bool, int, int]:
        operand = scope.graph[node.operands[names.index(name)]]
        known = operand.name or isinstance(operand.op, ir.Result)
        defined = operand.span.start if known and operand.span else 0
        same = operand.type.names[:1] != ("batch",)
        return (same, defined, names.index(name))

    return sorted(names, key=place)


def body_scope(
    scope: Scope, node: Node, like: str, arguments: Mapping[str, Sequence[Axis]]
) -> Scope:
    """The scope of a region's body: sizes are read off the shapes of its arguments."""
    return graph_scope(scope, node.op.body, like, arguments)


def graph_scope(
    scope: Scope, graph: Graph, like: str, arguments: Mapping[str, Sequence[Axis]], stream: str = ""
) -> Scope:
    """The same for any graph; along `stream` there may be other values than tokens."""
    body = Scope(graph, scope.emitters, scope.file, like, scope.layer)
    body.home, body.needs = scope.home, scope.needs
    given = {identifier(name) for name in arguments}
    spoken = {identifier(inner.name) for inner in graph if inner.name}
    body.names.taken = given | spoken
    body.lengths = {"batch": body.names.fresh("B"), "t": body.names.fresh("T")}
    if stream not in ("", *body.lengths):
        body.lengths[stream] = body.names.fresh(stream)
    body.names.taken = given | set(body.lengths.values())
    for argument, axes in arguments.items():
        for place, axis in enumerate(axes):
            local = body.lengths.get(axis.name)
            if local is None and axis.kind == "dim" and isinstance(axis.size, sympy.Symbol):
                size = axis.size.name
                local = body.sizes.get(size) or body.names.fresh(size)
                body.sizes[size] = local
            if local is not None:
                body.sources.setdefault(local, []).append((identifier(argument), place))
    return body


def extra_arguments(scope: Scope, body: Scope) -> tuple[list[str], list[str]]:
    """Names that the body needs and no argument's shape tells: its parameters, and what to give."""
    names = sorted(body.asked - set(body.sources) - {"wide"})
    lengths = {local: axis for axis, local in body.lengths.items()}
    given = []
    for name in names:
        if name == "training":
            text = scope.training
        elif name in lengths:
            text = scope.lengths[lengths[name]]
        else:
            text = scope.local(body.handed.get(name, name))
        given.append(scope.ask(text))
    return names, given


def by_kernels_or(
    scope: Scope, kernels: Any, targets: dict[str, str], other: Callable[[], dict[str, Value]]
) -> dict[str, Value]:
    """The lines that call a function of kernels, if there is one, where these can do it, and the
    `other` lines where not; the results by name."""
    if kernels is None:
        return other()
    with scope.writer.block(f"if {kernels.test}:"):
        kernels.call(targets)
    with scope.writer.block("else:"):
        found = other()
    return found


def argument_list(shapes: Mapping[str, Sequence[str]]) -> str:
    """`q, k [B, T, H, K]; v [B, T, H, V]`: arguments with their shapes, equal ones together."""
    grouped: dict[str, list[str]] = {}
    for name, layout in shapes.items():
        shape = shape_text(Value(Text(name), tuple(layout), DATA)) or "a number"
        grouped.setdefault(shape, []).append(name)
    return "; ".join(f"{', '.join(names)} {shape}" for shape, names in grouped.items())
