"""What the functions of recurrences and of attentions have in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from archc.backends.eager.file import RESERVED
from archc.backends.eager.scope import Scope
from archc.backends.eager.value import DATA, Value, shape_text
from archc.backends.expression import Text
from archc.backends.writer import identifier
from archc.dims import Axis
from archc.ir.graph import Node


def wanted_results(scope: Scope, node: Node) -> list[str]:
    """The results of a region that something reads, in the order of its body."""
    users = [scope.graph[user] for user in scope.graph.users(node.id)]
    live = {user.op.name for user in users if user.id in scope.uses}
    return [name for name in node.op.body.outputs if name in live]


def argument_shapes(
    scope: Scope, node: Node, values: Mapping[str, Value]
) -> dict[str, Sequence[Axis]]:
    """The axes of each argument, in the order of its dims."""
    shapes: dict[str, Sequence[Axis]] = {}
    for (name, value), operand in zip(values.items(), node.operands, strict=False):
        type = scope.graph[operand].type
        shapes[name] = [type.axis(axis) for axis in value.layout]
    return shapes


def body_scope(
    scope: Scope, node: Node, like: str, arguments: Mapping[str, Sequence[Axis]]
) -> Scope:
    """The scope of a region's body: sizes are read off the shapes of its arguments."""
    body = Scope(node.op.body, scope.emitters, scope.file, like, scope.layer)
    given = {identifier(name) for name in arguments} | set(RESERVED)
    spoken = {identifier(inner.name) for inner in node.op.body if inner.name}
    body.names.taken = given | spoken
    body.lengths = {"batch": body.names.fresh("B"), "t": body.names.fresh("T")}
    body.names.taken = given | set(body.lengths.values())
    for argument, axes in arguments.items():
        for place, axis in enumerate(axes):
            local = body.lengths.get(axis.name)
            if local is None and axis.kind == "dim" and axis.size.is_Symbol:
                size = axis.size.name
                local = body.sizes.get(size) or body.names.fresh(size)
                body.sizes[size] = local
            if local is not None:
                body.sources.setdefault(local, (identifier(argument), place))
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
            text = scope.sizes.get(name, name)
        given.append(scope.ask(text))
    return names, given


def argument_list(shapes: Mapping[str, Sequence[str]]) -> str:
    """`q, k [B, T, H, K]; v [B, T, H, V]`: arguments with their shapes, equal ones together."""
    grouped: dict[str, list[str]] = {}
    for name, layout in shapes.items():
        shape = shape_text(Value(Text(name), tuple(layout), DATA)) or "a number"
        grouped.setdefault(shape, []).append(name)
    return "; ".join(f"{', '.join(names)} {shape}" for shape, names in grouped.items())
