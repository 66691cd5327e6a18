"""A recurrence or an attention becomes a function of its own, and a line that calls it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from archc.backends.eager.file import RESERVED
from archc.backends.eager.scope import Scope, shape_text
from archc.backends.eager.value import BOOL, DATA, INT, NUMBER, Value
from archc.backends.expression import ATOM, Text, call
from archc.backends.index import aligned, permuted
from archc.backends.writer import Names, Writer, identifier
from archc.dims import Axis
from archc.ir import layer as ir
from archc.ir.graph import Node

KINDS = {"int": INT, "bool": BOOL, "real": DATA}


def wanted(scope: Scope, node: Node) -> list[str]:
    """The results of a region that something reads, in the order of its body."""
    live = [scope.graph[user].op.name for user in scope.graph.users(node.id) if user in scope.live]
    return [name for name in node.op.body.outputs if name in live]


def inside(scope: Scope, node: Node, like: str, arguments: Mapping[str, Sequence[Axis]]) -> Scope:
    """The scope of a region's body; sizes are read off the shapes of its arguments."""
    body = Scope(node.op.body, scope.emitters, scope.file, like, Names())
    body.layer, body.training = scope.layer, "training"
    spoken = {n.name for n in node.op.body if n.name} | set(arguments) | set(RESERVED)
    body.names.taken = {identifier(name) for name in spoken}
    for axis_name, hint in (("batch", "B"), ("t", "T")):
        body.lengths[axis_name] = body.names.fresh(hint)
    body.names.taken = {identifier(name) for name in (*arguments, *RESERVED)} | set(body.lengths.values())
    for argument, axes in arguments.items():
        for place, axis in enumerate(axes):
            local = body.lengths.get(axis.name) or (str(axis.size) if axis.size.is_Symbol else None)
            if local is not None:
                body.sources.setdefault(local, (identifier(argument), place))
    return body


def options(scope: Scope, body: Scope) -> tuple[list[str], list[str]]:
    """Names that the body needs and no argument's shape tells: parameters, and what the caller gives."""
    names = sorted(name for name in body.asked if name not in body.sources and name != "wide")
    given = [scope.ask(scope.training) if n == "training" else scope.option(n) for n in names]
    return names, [n if n == g else f"{n}={g}" for n, g in zip(names, given, strict=True)]


# --- recurrences -------------------------------------------------------------------------------


def fold(scope: Scope, node: Node) -> Value:
    """`o, S = memory(q, k, v, S)`: a loop over the tokens."""
    op, stream = node.op, node.op.stream.name
    values = {n: scope.value(o) for n, o in zip(op.captures, node.operands, strict=False)}
    tokens = [name for name, value in values.items() if stream in value.layout]
    axes = {name: _axes(scope, o, values[name]) for name, o in zip(op.captures, node.operands, strict=False)}
    axes |= {state.name: state.axes for state in op.states}
    body = inside(scope, node, identifier(op.states[0].name), axes)
    _enter_fold(body, node, values, tokens)
    results = wanted(scope, node)
    name = scope.file.names.fresh(scope.region_name(node, "_".join(s.name for s in op.states)))
    text = _fold_function(scope, body, node, name, values, tokens, results)
    scope.file.sections.append(text)
    before, after = scope.carrier.states(scope, node)
    _, extra = options(scope, body)
    targets = {n: scope.names.fresh(scope.result_name(node, n)) for n in results}
    arguments = [str(values[n].text) for n in op.captures] + before + extra
    scope.writer.call(f"{', '.join([*targets.values(), *after])} = {name}(", arguments, ")")
    scope.results[node.id] = {
        n: Value(Text(t), _result_layout(scope, node, n), KINDS[op.body[op.body.outputs[n]].type.dtype])
        for n, t in targets.items()
    }
    return Value(Text(""), (), NUMBER)


def _axes(scope: Scope, operand: int, value: Value) -> list[Axis]:
    """The axes of a value in the order of its dims."""
    type = scope.graph[operand].type
    return [type.axis(name) for name in value.layout]


def _result_layout(scope: Scope, node: Node, name: str) -> tuple[str, ...]:
    for user in scope.graph.users(node.id):
        if scope.graph[user].op.name == name:
            return scope.node_layout(scope.graph[user])
    raise KeyError(name)


def _enter_fold(body: Scope, node: Node, values: Mapping[str, Value], tokens: Sequence[str]) -> None:
    """The values of the body's inputs: captures at one token, states before it."""
    states = {f"{state.name}[t-1]": state for state in node.op.states}
    stream = node.op.stream.name
    for inner in node.op.body:
        if not isinstance(inner.op, ir.Input):
            continue
        if inner.op.name in states:
            state = states[inner.op.name]
            layout = tuple(axis.name for axis in state.axes)
            body.values[inner.id] = Value(Text(identifier(state.name)), layout, DATA)
            continue
        value = values[inner.op.name]
        name = identifier(inner.op.name)
        if inner.op.name in tokens:
            name = body.names.fresh(name + "_t")
        kind = NUMBER if value.kind == NUMBER else KINDS[inner.type.dtype]
        layout = tuple(axis for axis in value.layout if axis != stream)
        body.values[inner.id] = Value(Text(name), layout, kind)


def _fold_function(
    scope: Scope, body: Scope, node: Node, name: str,
    values: Mapping[str, Value], tokens: Sequence[str], results: Sequence[str],
) -> str:  # fmt: skip
    """The text of the function of a recurrence."""
    op = node.op
    states = [identifier(state.name) for state in op.states]
    outputs = op.body.outputs
    body.suffix = {outputs[n]: "_t" for n in (*[s.name for s in op.states], *results)}
    body.statements()
    after = [_as_state(body, state) for state in op.states]
    collected = {n: body.value(outputs[n]) for n in results}
    real = [identifier(n) for n, v in values.items() if v.kind not in (INT, BOOL, NUMBER)]
    names, _ = options(scope, body)
    writer = Writer()
    heading = [identifier(n) for n in op.captures] + states + names
    with writer.block(f"def {name}({', '.join(heading)}):"):
        writer.docstring([_fold_title(op, results), *_shapes(body, {**_seen(values), **_states(op)})])
        lists = {n: body.names.fresh(f"{identifier(n)}_all") for n in results}
        tail = _fold_tail(body, node, lists, results, collected, real)
        write_head(writer, body)
        if real:
            writer.line(f"dtype = {real[0]}.dtype")
            _cast(writer, real, f"{states[0]}.dtype")
        if lists:
            writer.line(" = ".join(lists.values()) + " = []" if len(lists) == 1 else
                        f"{', '.join(lists.values())} = {', '.join('[]' for _ in lists)}")
        with writer.block(_loop(body, node, values, tokens)):
            writer.lines += [("    " * writer.depth + line) if line else "" for line in body.writer.lines]
            for n, value in collected.items():
                writer.line(f"{lists[n]}.append({value.text})")
            writer.line(f"{', '.join(states)} = {', '.join(after)}")
        for line in tail:
            writer.line(line)
    return writer.text()
