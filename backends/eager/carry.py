"""Lines by which a function reads the state of earlier calls, and returns that for later ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import sympy
from archc.backends.eager.memory import Field, blocks_made, crop
from archc.backends.eager.value import KIND_OF, NUMBER, Value
from archc.backends.expression import ATOM, Text, call
from archc.backends.index import aligned
from archc.backends.writer import in_tuple

from archc.dims import Axis
from archc.ir.graph import Node

if TYPE_CHECKING:
    from archc.backends.eager.scope import Scope


def shape(
    scope: Scope, axes: Sequence[Axis], stream: str = "", count: sympy.Expr | None = None
) -> list[str]:
    """The lengths of axes as text; `count` tokens along the stream, none where it is not given."""
    lengths = []
    for axis in axes:
        if axis.name == stream:
            lengths.append("0" if count is None else scope.size(count).text)
        else:
            lengths.append(scope.length(axis).text)
    return lengths


def past(scope: Scope, node: Node) -> tuple[Text, str]:
    """The tokens before the first that a window or shift needs, and the name for those to keep."""
    if node.id in scope.pasts:
        name = scope.pasts[node.id]
        after = scope.kept[name] = scope.names.fresh(name)
        return Text(name), after
    field = scope.memory.field("past", node.id) if scope.memory else None
    if field is not None:
        after = scope.kept[field.name] = scope.names.fresh(field.name)
        return Text(f"state.{field.name}"), after
    axes = scope.graph[node.operands[0]].type.axes
    steps = getattr(node.op, "steps", None)
    count = sympy.Integer(steps) if steps is not None else node.op.width.size - 1
    lengths = shape(scope, axes, node.op.stream, count)
    return call("torch.zeros", *lengths, f"device={scope.device}", f"dtype={scope.dtype}"), "_"


def states(scope: Scope, node: Node) -> tuple[list[str], list[str]]:
    """The states of a recurrence before its first token, and names for those after its last."""
    fields = scope.memory.states(node.id) if scope.memory else []
    first = node.operands[len(node.op.captures) :]
    if fields:
        after = [scope.names.fresh(field.name) for field in fields]
        scope.kept |= dict(zip((field.name for field in fields), after, strict=True))
        return [_before(scope, *each) for each in zip(fields, first, strict=True)], after
    return [
        initial(scope, operand, state.axes).text
        for operand, state in zip(first, node.op.states, strict=True)
    ], ["_"] * len(node.op.states)


def _before(scope: Scope, field: Field, first: int) -> str:
    """A state before the next token; before the first token, what it begins as."""
    kept = f"state.{field.name}"
    if not field.begun:
        return kept
    made, name = initial(scope, first, field.axes), scope.names.fresh(f"{field.name}_before")
    scope.writer.line(f"{name} = {made} if {kept} is None else {kept}")
    return name


def initial(scope: Scope, operand: int, axes: Sequence[Axis], kind: str = "") -> Text:
    """The initial value of a state, in its full shape and in float32 at least.

    `kind`: how device and dtype are written where they are not those of the data.
    """
    value = scope.value(operand)
    lengths = shape(scope, axes)
    kind = kind or f"device={scope.device}, dtype={scope.ask('wide')}"
    if value.kind == NUMBER:
        if value.text.text == "0":
            return call("torch.zeros", *lengths, kind)
        return call("torch.full", in_tuple(lengths), value.text, kind)
    text = aligned(value.text, value.layout, [axis.name for axis in axes])
    return call(f"{call(f'{text.at(ATOM)}.expand', *lengths)}.to", kind)


def read(scope: Scope, node: Node, operand: int) -> Value:
    """A value that an attention reads, with what was kept of it from earlier calls in front."""
    source = node.op.source
    if scope.memory is None or source not in scope.graph[operand].type.names:
        return scope.value(operand)
    field = scope.memory.field("seen", operand)
    value = scope.per_token(operand, source)
    if field is None:
        return value
    if scope.file.slots:
        return _in_slots(scope, node, field, value)
    if field.name not in scope.kept:
        name = scope.names.fresh(f"{field.name}_seen")
        given = [f"state.{field.name}", value.text, *filter(None, [scope.wanted])]
        whole = call("grown", *given).text
        if scope.cu_seqlens:
            whole = f"{whole} if {scope.cu_seqlens} is None else {value.text}"
        scope.writer.line(f"{name} = {whole}")
        scope.seen[operand] = name
        scope.kept[field.name] = name
        if field.count is not None:
            scope.kept[field.name] = f"last_tokens({name}, {scope.size(field.count)})"
    name = Text(scope.seen[operand])
    count = crop(node)
    if field.count is None and count is not None:
        count = scope.size(count)
        name = call(
            "last_tokens", name, f"{count} + {scope.ask(scope.lengths[node.op.reader.name])}"
        )
    return Value(name, value.layout, KIND_OF[scope.graph[operand].type.dtype])


def _in_slots(scope: Scope, node: Node, field: Field, value: Value) -> Value:
    """A value that an attention reads, in the memory where it is kept of each sequence."""
    if field.name not in scope.kept:
        name = scope.kept[field.name] = scope.names.fresh(f"{field.name}_seen")
        ring = ["ring=True"] * (field.count is not None)
        given = [f"state.{field.name}", value.text, scope.ask("pos"), *ring]
        made = blocks_made(scope.graph, node.op.source)
        if made is not None:
            given += [scope.size(made.width.size), scope.size(made.stride)]
        keep = "kept_in_slots" if made is None else "block_kept_in_slots"
        scope.writer.line(f"{name} = {call(keep, *given)}")
    return Value(Text(scope.kept[field.name]), value.layout, value.kind)
