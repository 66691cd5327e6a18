"""A called layer becomes a sub-module and a line that calls it; a stack of layers, a loop."""

from __future__ import annotations

from archc.backends.eager.naming import listed
from archc.backends.eager.packed import new_alone
from archc.backends.eager.scope import Scope
from archc.backends.eager.stacks import Chain
from archc.backends.eager.value import DATA, KIND_OF, Value
from archc.backends.expression import ATOM, Text, call
from archc.backends.index import aligned
from archc.backends.writer import attribute, identifier

from archc.ir.graph import Node


def callee(scope: Scope, node: Node) -> Value:
    """A call, or the whole stack that it belongs to."""
    chain = scope.memory.chains.get(node.id) if scope.memory else None
    if chain is not None:
        _stack(scope, chain)
        return Value(Text("None"), (), DATA)
    target = "self." + reach(node.op.path)
    arguments = [_argument(scope, node, place).text for place in range(len(node.operands))]
    arguments += _borders(scope)
    field = scope.memory.field("layer", node.id) if scope.memory else None
    results = {
        scope.graph[u].op.name: scope.graph[u]
        for u in scope.graph.users(node.id)
        if u in scope.uses
    }
    outputs = list(node.op.callee.graph.outputs)
    if field is None and len(outputs) == 1:
        user = results[outputs[0]]
        value = Value(call(target, *arguments), user.type.names, KIND_OF[user.type.dtype])
        scope.results[node.id] = {outputs[0]: value}
        return Value(Text("None"), (), DATA)
    short = identifier(node.op.path.split(".")[-1])
    names = [scope.names.fresh(results[n].name or short) if n in results else "_" for n in outputs]
    left = names[0] if len(names) == 1 else f"({', '.join(names)})"
    if field is not None:
        _with_state(scope, node, left, field.name, arguments)
    else:
        scope.writer.call(f"{left} = {target}(", arguments, ")")
    scope.results[node.id] = {
        n: Value(Text(name), results[n].type.names, KIND_OF[results[n].type.dtype])
        for n, name in zip(outputs, names, strict=True)
        if n in results
    }
    return Value(Text("None"), (), DATA)


def _borders(scope: Scope) -> list[str]:
    """The argument that tells a layer inside of packed sequences."""
    return [f"cu_seqlens={scope.cu_seqlens}"] if scope.cu_seqlens else []


def _with_state(scope: Scope, node: Node, left: str, field: str, arguments: list[str]) -> None:
    """The lines that call a layer which remembers. It leaves no state that nobody asks for: it
    would copy what it keeps. One that takes new packed sequences alone begins anew."""
    target, writer = "self." + reach(node.op.path), scope.writer
    state = scope.kept[field] = scope.names.fresh(f"{field}_state")
    alone = f" if {scope.cu_seqlens} is None else None" * _new_alone(scope, node)
    given = [*arguments, f"state=state.{field}{alone}"]
    if not scope.wanted:
        writer.call(f"{left}, {state} = {target}(", [*given, "return_state=True"], ")")
        return
    with writer.block(f"if {scope.wanted}:"):
        writer.call(f"{left}, {state} = {target}(", [*given, "return_state=True"], ")")
    with writer.block("else:"):
        writer.call(f"{left} = {target}(", given, ")")
        writer.line(f"{state} = None")


def _new_alone(scope: Scope, node: Node) -> bool:
    """Whether a layer inside takes packed sequences at once only if they are new."""
    return bool(scope.cu_seqlens) and new_alone(node.op.callee)


def reach(path: str) -> str:
    """A sub-layer's path as attributes and places in lists: `layers[0]`."""
    place = listed(path)
    return f"{reach(place[0])}[{place[1]}]" if place else attribute(path)


def _argument(scope: Scope, node: Node, place: int) -> Text:
    """An operand with its dims in the order of the callee's input."""
    axes = dict(node.op.axes)
    _, declared = node.op.callee.inputs[place]
    want = [axes.get(axis.name, axis) for axis in declared.type.axes]
    value = scope.value(node.operands[place])
    text = aligned(value.text, value.layout, [axis.name for axis in want])
    if len(value.layout) < len(want):
        text = call(f"{text.at(ATOM)}.expand", *(scope.length(axis) for axis in want))
    return text


def _stack(scope: Scope, chain: Chain) -> None:
    """`for layer, past in zip(self.layers, state.layers, strict=True): x, past = layer(x, ...)`."""
    first, last = scope.graph[chain.calls[0]], scope.graph[chain.calls[-1]]
    field = scope.memory.field("layers", first.id) if scope.memory else None
    arguments = [_argument(scope, first, place).text for place in range(len(first.operands))]
    outputs = list(last.op.callee.graph.outputs)
    names = {}
    for place, output in enumerate(chain.carried):
        if output is None:
            continue
        mine = scope.values[first.operands[place]]
        once = (
            scope.uses.get(first.operands[place]) == 1 and mine.bound and "." not in mine.text.text
        )
        names[output] = arguments[place] if once else scope.names.fresh(output)
        if not once:
            scope.writer.line(f"{names[output]} = {arguments[place]}")
        arguments[place] = names[output]
    for user in scope.graph.users(last.id):  # what the last layer gives and none is given
        if user in scope.uses and (given := scope.graph[user].op.name) not in names:
            names[given] = scope.names.fresh(given)
    left = ", ".join(names.get(output, "_") for output in outputs)
    left = f"({left})" if len(outputs) > 1 and field else left
    if field is None:
        with scope.writer.block(f"for layer in self.{reach(chain.path)}:"):
            scope.writer.call(f"{left} = layer(", [*arguments, *_borders(scope)], ")")
    else:
        _stack_with_states(scope, chain, field.name, left, [*arguments, *_borders(scope)])
    for id in chain.calls:
        users = {scope.graph[u].op.name: scope.graph[u] for u in scope.graph.users(id)}
        scope.results[id] = {
            n: Value(Text(names[n]), users[n].type.names, KIND_OF[users[n].type.dtype])
            for n in outputs
            if n in users and n in names
        }


def _stack_with_states(
    scope: Scope, chain: Chain, field: str, left: str, arguments: list[str]
) -> None:
    """The loop over layers that remember; as `_with_state` has it of packed sequences, if one takes
    new ones alone."""
    writer, kept = scope.writer, scope.names.fresh(f"{field}_state")
    scope.kept[field] = f"tuple({kept})"
    writer.line(f"{kept} = []")
    with writer.block(
        f"for layer, past in zip(self.{reach(chain.path)}, state.{field}, strict=True):"
    ):
        alone = any(_new_alone(scope, scope.graph[call]) for call in chain.calls)
        given = [*arguments, "state=past" + f" if {scope.cu_seqlens} is None else None" * alone]
        if scope.wanted:
            with writer.block(f"if not {scope.wanted}:"):
                writer.call(f"{left} = layer(", given, ")")
                writer.line("continue")
        writer.call(f"{left}, past = layer(", [*given, "return_state=True"], ")")
        writer.line(f"{kept}.append(past)")
