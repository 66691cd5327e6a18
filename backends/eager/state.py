"""The state of a layer: a named tuple, and the method that gives its first value."""

from __future__ import annotations

import sympy
from archc.backends.eager import carry
from archc.backends.eager.calls import reach
from archc.backends.eager.file import state_of
from archc.backends.eager.memory import Field, blocks_made
from archc.backends.eager.parts import Parts, shape_of
from archc.backends.eager.scope import Scope
from archc.backends.expression import MUL, POWER, number
from archc.backends.writer import Writer, quoted

from archc.ir import layer as ir

DTYPES = {"int": "torch.int64", "bool": "torch.bool"}
"""The dtype of what is kept, where it is not that of the data."""

REAL, WIDE = "**real", "**wide"
"""Device and dtype in `initial_state`: as the parameters have it, and in float32 at least."""


def state_class(parts: Parts) -> Writer:
    """`class LayerState(NamedTuple)`: one field for each thing that is kept."""
    writer, fields = Writer(), parts.memory.fields
    wide = [field.name for field in fields if field.wide]
    shared = [f.name for f in fields if f.axes and f.axes[0].kind != "batch"]
    grows = [field.name for field in fields if field.kind == "seen" and field.count is None]
    told = [("wide", wide), ("shared", shared), ("grows", grows)]
    if parts.file.slots:
        told.append(("rings", [f.name for f in fields if f.kind == "seen" and f.name not in grows]))
        told.append(("blocks", [f.name for f in fields if of_blocks(parts, f)]))
    given = [f"{word}={quoted(' '.join(names))}" for word, names in told if names]
    writer.line(f"@state_object({', '.join(given)})")
    with writer.block(f"class {parts.state}(NamedTuple):"):
        nothing = "" if fields else ": nothing"
        writer.docstring([f"What {parts.name} remembers of the tokens it has seen{nothing}."])
        if fields:
            writer.line()
        for field in fields:
            writer.line(f"{field.name}: {annotation(parts, field)}", note(parts, field))
    return writer


def annotation(parts: Parts, field: Field) -> str:
    """The type of a field."""
    if field.kind == "layer":
        return state_of(parts.classes[id(parts.layer.graph[field.node].op.callee)])
    number = "Tensor" if parts.file.slots else "int"
    if field.begun:
        return "Tensor | None"
    return {"layers": "tuple", "other": "Tensor | None", "pos": number}.get(field.kind, "Tensor")


def note(parts: Parts, field: Field) -> str:
    """The comment behind a field: its shape, and its meaning."""
    if field.kind == "pos":
        return "[B], tokens seen" if parts.file.slots else "tokens seen"
    count = "0" if field.count is None else str(number(field.count, parts.arguments.names))
    if field.kind == "past" and isinstance(parts.layer.graph[field.node].op, ir.Window):
        count = str(number(past_tokens(parts, field), parts.arguments.names))
        count = "..." if of_blocks(parts, field) and not parts.file.slots else count
    known = {"past": (count, ", the tokens before the next"), "seen": ("S", ", every token seen")}
    if field.kind == "seen" and field.count is not None:
        turns = " and one more, in turn" if parts.file.slots else ""
        known["seen"] = ("S", f", the last tokens, at most {count}{turns}")
    elif field.kind == "seen" and parts.file.slots:
        known["seen"] = ("S", ", room for every token")
    length, text = known.get(field.kind, ("", ""))
    names = [length if a.name in parts.memory.flow and length else a.name for a in field.axes]
    return shape_of(names) + text if field.axes else ""


def initial_state(parts: Parts) -> Writer:
    """`initial_state(batch)`: what is remembered before the first token."""
    scope = parts.scope("self", parts.sizes)
    scope.lengths = {"batch": "batch"}
    scope.device, scope.dtype = 'real["device"]', 'real["dtype"]'
    items = [
        f"{field.name}={first(parts, scope, field, REAL, WIDE)}" for field in parts.memory.fields
    ]
    writer, title = Writer(margin=4), "What is remembered of `batch` sequences before their first"
    given = ["self", "batch: int", "device=None", "dtype=None"]
    if parts.file.slots:
        given.insert(2, "capacity: int")
    with writer.block(f"def initial_state({', '.join(given)}) -> {parts.state}:"):
        room = ", with room for `capacity` of each" * parts.file.slots
        writer.docstring([f"{title} token{room}."])
        if any("**" in item or 'real["' in item for item in [*items, *scope.writer.lines]):
            writer.line("real = kinds_of(self, device, dtype)")
        if "wide" in scope.asked:
            wide = 'torch.promote_types(real["dtype"], torch.float32)'
            writer.line(f'wide = {{**real, "dtype": {wide}}}')
        writer.include(scope.writer.lines)
        writer.call(f"return {parts.state}(", items, ")")
    return writer


def first(parts: Parts, scope: Scope, field: Field, real: str, wide: str) -> str:
    """The first value of a field; `real` and `wide`: device and dtype of values and states."""
    node = parts.layer.graph[field.node] if field.node >= 0 else None
    given = "batch, capacity, device, dtype" if parts.file.slots else "batch, device, dtype"
    if node is None:
        whole = 'torch.zeros(batch, device=real["device"], dtype=torch.int64)'
        return whole if parts.file.slots else "0"
    if field.kind == "other" or field.begun:
        return "None"
    if field.kind == "layer":
        return f"self.{reach(node.op.path)}.initial_state({given})"
    if field.kind == "layers":
        path = reach(parts.memory.chains[field.node].path)
        return f"tuple(layer.initial_state({given}) for layer in self.{path})"
    if field.kind == "state":
        operand = node.operands[len(node.op.captures) + field.place]
        scope.ask("wide")
        made = carry.initial(scope, operand, field.axes, wide).text
        own = not parts.file.slots or str(made).startswith("torch.zeros(")
        return f"{made}" if own else f"{made}.clone()"  # a step writes over it
    stream = next(axis.name for axis in field.axes if axis.name in parts.memory.flow)
    count = past_tokens(parts, field) if field.kind == "past" else None
    lengths = carry.shape(scope, field.axes, stream, count)
    if parts.file.slots and field.kind == "seen":
        latest = "" if field.count is None else str(scope.size(field.count + 1))
        room = f"min(capacity, {latest})" if latest else _room(parts, scope, stream)
        lengths[[axis.name for axis in field.axes].index(stream)] = room
    kind = DTYPES.get(field.dtype)
    real = scope.ask(wide) and wide if field.wide else real
    kind = f"device={scope.device}, dtype={kind}" if kind else real
    return f"torch.zeros({', '.join(lengths)}, {kind})"


def of_blocks(parts: Parts, field: Field) -> bool:
    """Whether a field has the tokens of a block that is not complete."""
    op = parts.layer.graph[field.node].op if field.kind == "past" else None
    return isinstance(op, ir.Window) and op.stride is not None


def past_tokens(parts: Parts, field: Field) -> sympy.Expr:
    """How many tokens before the next a field has; in slots those of a block that is not complete
    have room for any."""
    if parts.file.slots and of_blocks(parts, field):
        return parts.layer.graph[field.node].op.width.size - 1
    return sympy.Integer(0) if field.count is None else field.count


def _room(parts: Parts, scope: Scope, stream: str) -> str:
    """For how many tokens of a stream, or blocks of tokens, there is room in slots."""
    made = blocks_made(parts.layer.graph, stream)
    if made is None:
        return "capacity"
    width, stride = scope.size(made.width.size), scope.size(made.stride)
    return f"max(0, (capacity - {width.at(MUL)}) // {stride.at(POWER)} + 1)"
