"""Gradients of ops with a body: the gradient of the body, in an op of the same kind.

A rule takes the cotangents of the results by name. `Builder.differentiate` gives the gradient of a
body: its `forward`, which may have more outputs, and its `backward`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from archc.autodiff.gradient_builder import Builder, NoGradient
from archc.autodiff.products import Term, added_up, take_out, total
from archc.ir import builder
from archc.ir import chunk as ck
from archc.ir import layer as ir
from archc.ir.free_names import marked
from archc.ir.graph import Graph, Node, Type
from archc.ir.value_names import cotangent, state_before

Cotangents = list[int | None]
Given = Mapping[str, int]
"""The cotangent of each result that has one."""


def carried(state: str) -> str:
    """The name of the cotangent of a state as a state: its name as a result is taken."""
    return f"{cotangent(state)}.carried"


# --- recurrences ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Flow:
    """The active part of a Recurrence in its gradient: captures, carried states, and outputs.
    `reached`: the inputs of the body that a gradient reaches."""

    captures: tuple[str, ...]
    states: tuple[ir.State, ...]
    outputs: tuple[str, ...]
    reached: tuple[str, ...] = ()


def recurrence(b: Builder, node: Node, given: Given) -> Cotangents:
    """The Recurrence the other way, over the gradient of the body. Its states are the cotangents of
    the states; it captures what the body captured, the states before each token, and the cotangents
    of the results along the stream:

        dS[t-1], dx[t] = gradient of the body at (x[t], S[t-1]) of (dS[t], dy[t])

    It begins with the cotangents of the states in the end.
    """
    op, flow = node.op, _flow(b, node, given)
    given, ends = _ends(b, node, flow, given)
    wanted = [*flow.captures, *(state.before for state in flow.states)]
    if not flow.outputs:
        return [None] * len(node.operands)
    body = b.differentiate(op.body, wanted, flow.outputs, stored=[*map(state_before, _names(op))])
    flow = replace(flow, reached=tuple(name for name in wanted if name not in body.unreached))
    streams = _streams(b, node, body)
    back = _reversed_body(body.backward, flow, given)
    products = _taken_out(b, node, flow, back)
    captured = [name for name in flow.reached if name in op.captures]
    sums = _added_up(node, flow, back, [name for name in captured if name not in products])
    captures = {**streams, **_results_given(b, node, given, flow)}
    read = [n.op.name for n in back if isinstance(n.op, ir.Input) and n.op.name in captures]
    states = tuple(replace(state, name=carried(state.name)) for state in flow.states)
    states, starts = (*states, *sums.values()), [*ends, *(b.zero() for _ in sums)]
    reverse = ir.Recurrence(op.stream, tuple(read), states, back, op.heads, not op.reverse)
    made = b.add(reverse, *(captures[name] for name in read), *starts)
    return [
        *_of_captures(b, node, flow, made, products, captures, sums),
        *_of_starts(b, node, flow, made, ends),
    ]


def _flow(b: Builder, node: Node, given: Given) -> _Flow:
    """The captures and states that depend on an active operand and that a cotangent reaches."""
    op, body = node.op, node.op.body
    inputs = {n.op.name: n.id for n in body if isinstance(n.op, ir.Input)}
    starts = node.operands[len(op.captures) :]
    captures = [
        name
        for name, operand in zip(op.captures, node.operands, strict=False)
        if operand in b.active and name in inputs
    ]
    read = [state for state in op.states if state.before in inputs]
    live = {s.name for s, start in zip(op.states, starts, strict=True) if start in b.active}
    reads = {name: body.ancestors(id) | {id} for name, id in body.outputs.items()}

    def active(name: str) -> bool:
        """Whether an output depends on an active capture or state."""
        entering = [*captures, *(s.before for s in read if s.name in live)]
        return any(inputs[each] in reads[name] for each in entering)

    def wanted(name: str) -> bool:
        """Whether a cotangent comes back to a state from what is read or carried."""
        return any(inputs[state_before(name)] in reads[out] for out in sinks)

    for _ in op.states:
        live |= {state.name for state in op.states if active(state.name)}
    sinks = set(given)
    for _ in op.states:
        sinks |= {state.name for state in read if wanted(state.name)}
    states = tuple(s for s in read if s.name in live and wanted(s.name))
    outputs = {*given, *(state.name for state in states)}
    chosen = tuple(name for name in body.outputs if name in outputs and active(name))
    return _Flow(tuple(captures), states, chosen)


def last(b: Builder, node: Node, d: int) -> Cotangents:
    """The gradient of a Recurrence takes the cotangent of a state in the end to its start itself;
    elsewhere a Last is as its own formula says."""
    if not carries(b.graph, node):
        return node.op.gradient(b, node, d)
    return [node.op.of_value(b, node, d), None]


def carries(graph: Graph, last: Node) -> bool:
    """Whether a Last reads a state of a Recurrence in the end, or where it began if there are no
    tokens, and the Recurrence hands the cotangent of that state on from token to token."""
    result = graph[last.operands[0]]
    recurrence = graph[result.operands[0]] if isinstance(result.op, ir.Result) else result
    op = recurrence.op
    if not isinstance(op, ir.Recurrence) or (op.stream.name, op.reverse) != (
        last.op.stream, last.op.reverse
    ):  # fmt: skip
        return False
    name, body = result.op.name, op.body
    starts = dict(zip(_names(op), recurrence.operands[len(op.captures) :], strict=True))
    if starts.get(name) != last.operands[1]:
        return False
    return _hands_on(body, name)


def _hands_on(body: Graph, state: str) -> bool:
    """Whether a state after a token depends on that before it."""
    inputs = {n.op.name: n.id for n in body if isinstance(n.op, ir.Input)}
    made = body.outputs[state]
    return inputs.get(state_before(state)) in {made, *body.ancestors(made)}


def _ends(b: Builder, node: Node, flow: _Flow, given: Given) -> tuple[Given, list[int]]:
    """The cotangents of results without what arrives at the last token alone, and that: for each
    state of the flow its cotangent in the end. A state that each token makes anew has none: without
    tokens it would come to the start once more, beside what `last` gives there."""
    rest, ends = dict(given), []
    end = ck.AtLast(node.op.stream, node.op.reverse)
    for state in flow.states:
        if not _hands_on(node.op.body, state.name):
            ends.append(b.zero())
            continue
        parts = b.addends(rest.pop(state.name)) if state.name in rest else []
        last = [b.graph[d].operands[0] for d in parts if b.graph[d].op == end]
        others = [d for d in parts if b.graph[d].op != end]
        if others:
            rest[state.name] = b.sum(others)
        ends.append(b.exactly(b.sum(last), Type(state.axes)) if last else b.zero())
    return rest, ends


def _streams(b: Builder, node: Node, body: Any) -> dict[str, int]:
    """The values of the forward that a body's gradient may read along the stream: captures, states
    before each token, and saved values. The Recurrence is given an output for each that had
    none."""
    op, forward = node.op, body.forward
    inputs = {n.op.name: n.id for n in forward if isinstance(n.op, ir.Input)}
    read = {n.op.name for n in body.backward if isinstance(n.op, ir.Input)}
    needed = {name: inputs[name] for name in map(state_before, _names(op)) if name in read}
    needed |= {saved.name: forward.outputs.pop(saved.name) for saved in body.saved}
    put_out: dict[str, str] = {}
    for name, id in needed.items():
        known = [output for output, made in forward.outputs.items() if made == id]
        put_out[name] = known[0] if known else marked(name, forward.outputs)
        forward.outputs[put_out[name]] = id
    b.graph.replace_op(node.id, replace(op, body=forward))
    captures = dict(zip(op.captures, node.operands, strict=False))
    return captures | {name: b.add(ir.Result(out), node.id) for name, out in put_out.items()}


def _names(op: ir.Recurrence) -> list[str]:
    return [state.name for state in op.states]


def _reversed_body(backward: Graph, flow: _Flow, given: Given) -> Graph:
    """The gradient of a body as a body: the cotangent of a state after the token is that which came
    from later tokens, and that of the result along the stream."""
    body = backward.copy()
    inputs = {n.op.name: n for n in body if isinstance(n.op, ir.Input)}
    for state in flow.states:
        name = cotangent(state.name)
        later = body.add(ir.Input(state_before(carried(state.name)), Type(state.axes)))
        if name not in inputs:
            continue
        entered = inputs[name]
        extra = tuple(a.name for a in state.axes if a.name not in entered.type.names)
        total = body.add(ir.Reduce("sum", extra), later) if extra else later
        total = _in_order(body, total, entered.type)
        if state.name in given:
            now = body.add(ir.Input(name, entered.type))
            total = builder.Builder(body).fn("add", now, total)
        body.substitute(entered.id, total)
    outputs = {carried(s.name): body.outputs[cotangent(s.before)] for s in flow.states}
    reached = [name for name in flow.captures if name in flow.reached]
    outputs |= {cotangent(name): body.outputs[cotangent(name)] for name in reached}
    body.outputs = outputs
    body.prune()
    return body


def _in_order(body: Graph, id: int, type: Type) -> int:
    """A value with its axes in the order of a type: a state may be made in another one."""
    own = body[id].type
    if own.names == type.names:
        return id
    return body.add(ir.Contract((own.names,), tuple((axis.name, axis) for axis in type.axes)), id)


def _results_given(b: Builder, node: Node, given: Given, flow: _Flow) -> dict[str, int]:
    """The cotangents of results, as captures: along the stream, with every axis."""
    types = {
        n.op.name: n.type
        for n in map(b.graph.__getitem__, b.graph.users(node.id))
        if isinstance(n.op, ir.Result)
    }
    return {
        cotangent(name): b.full(given[name], types[name].axes)
        for name in flow.outputs
        if name in given
    }


def _taken_out(b: Builder, node: Node, flow: _Flow, back: Graph) -> dict[str, list[Term]]:
    """Cotangents of captures that are sums of products, made outside: of those without the stream,
    and of others where that takes no more memory and no state needs them. What is left to be added
    up along the loop comes last, as its factors may be those of the others."""
    operands = dict(_captured(node))
    states = [state_before(carried(state.name)) for state in flow.states]
    flowing = {
        id
        for state in flow.states
        for out in [back.outputs[carried(state.name)]]
        for id in (out, *back.ancestors(out))
    }
    given = [name for name in flow.reached if name in operands]
    along = {name for name in given if node.op.stream.name in b.names(operands[name])}
    whole = [name for name in given if name not in along]
    large = {name for name in whole if _added(node, flow, back, name) is not None}
    found = {}
    for name in sorted(given, key=lambda name: name in large):
        if name in large and _added(node, flow, back, name) is not None:
            continue
        kept = flowing if name in along else None
        found[name] = take_out(back, cotangent(name), states, kept)
    return found


def _added(node: Node, flow: _Flow, back: Graph, name: str) -> int | None:
    """What each token adds to the cotangent of a capture without the stream, if it had better be
    added up along the loop."""
    if node.op.stream.kind != "stream":
        return None
    states = [state_before(carried(state.name)) for state in flow.states]
    return added_up(back, cotangent(name), states, node.op.heads)


def _added_up(node: Node, flow: _Flow, back: Graph, names: Collection[str]) -> dict[str, ir.State]:
    """States of the reverse body that are the cotangents of captures so far."""
    found = dict[str, ir.State]()
    for name in names:
        added = _added(node, flow, back, name)
        assert added is not None, "it was left to be added up"
        state = found[name] = ir.State(carried(name), back[added].type.axes)
        so_far = back.add(ir.Input(state.before, back[added].type))
        back.outputs[state.name] = builder.Builder(back).fn("add", so_far, added)
        del back.outputs[cotangent(name)]
    back.prune()
    return found


def _of_captures(
    b: Builder,
    node: Node,
    flow: _Flow,
    made: int,
    products: Mapping[str, list[Term]],
    captures: Given,
    sums: Mapping[str, ir.State],
) -> Iterator[int | None]:
    """Cotangents of captures: along the stream, or summed over it."""
    stream = node.op.stream
    whole = {name: id for name, id in _captured(node) if stream.name not in b.names(id)}

    def value(name: str) -> int:
        """A value of the reverse body, outside it."""
        return captures[name] if name in captures else b.add(ir.Result(name), made)

    for name in node.op.captures:
        if name not in flow.reached:
            yield None
        elif name in sums:
            state = sums[name]
            along = b.add(ir.Result(state.name), made)
            last = b.add(ck.Last(stream.name, not node.op.reverse), along, b.zero())
            yield b.fit(last, Type(state.axes), b.type(whole[name]))
        elif products[name]:
            yield total(b, products[name], stream, value, along=name not in whole)
        else:
            found = b.add(ir.Result(cotangent(name)), made)
            yield b.reduce(found, [stream.name]) if name in whole else found


def _captured(node: Node) -> list[tuple[str, int]]:
    """The captures of a Recurrence by name."""
    return list(zip(node.op.captures, node.operands, strict=False))


def _of_starts(
    b: Builder, node: Node, flow: _Flow, made: int, ends: list[int]
) -> Iterator[int | None]:
    """Cotangents of initial values: the last ones of the reverse Recurrence, which stand first."""
    op = node.op
    end = {state.name: id for state, id in zip(flow.states, ends, strict=True)}
    live = {state.name for state in flow.states if state.before in flow.reached}
    for state, start in zip(op.states, node.operands[len(op.captures) :], strict=True):
        if state.name not in live or start not in b.active:
            yield None
            continue
        along = b.add(ir.Result(carried(state.name)), made)
        last = b.add(ck.Last(op.stream.name, not op.reverse), along, end[state.name])
        yield b.fit(last, Type(state.axes), b.type(start))


# --- pairs --------------------------------------------------------------------------------------


def attend(b: Builder, node: Node, given: Given) -> Cotangents:
    """The Attend over the gradient of its body, which makes the forward's values anew: what was
    read by many readers gets the sum over them."""
    op = node.op
    captured = [n.op.name for n in op.body if isinstance(n.op, ir.Input)]
    wanted = [
        name
        for (name, _), operand in zip(op.captures, node.operands, strict=True)
        if operand in b.active and name in captured
    ]
    body = b.differentiate(op.body, wanted, list(given), save=False)
    values = {name: (role, id) for (name, role), id in zip(op.captures, node.operands, strict=True)}
    for name, d in given.items():
        axes = op.body[op.body.outputs[name]].type.axes
        values[cotangent(name)] = ("reader", b.full(d, axes))
    reached = [name for name in wanted if name not in body.unreached]
    body.backward.outputs = {
        cotangent(name): body.backward.outputs[cotangent(name)] for name in reached
    }
    body.backward.prune()
    read = [n.op.name for n in body.backward if isinstance(n.op, ir.Input)]
    captures = tuple((name, values[name][0]) for name in read)
    back = ir.Attend(
        op.reader, op.read, op.source, captures, body.backward, op.path, op.window, op.causal
    )
    made = b.add(back, *(values[name][1] for name in read))
    return [
        _outside(b, node, name, role, operand, made) if name in reached else None
        for (name, role), operand in zip(op.captures, node.operands, strict=True)
    ]


def _outside(b: Builder, node: Node, name: str, role: str, operand: int, made: int) -> int:
    """The cotangent of a capture as it is outside: along the stream that is read."""
    found = b.add(ir.Result(cotangent(name)), made)
    inside = {"reader": None, "read": node.op.read, "path": node.op.path}[role]
    if inside is None or node.op.source not in b.names(operand):
        return found
    return b.renamed(found, {inside.name: b.type(operand).axis(node.op.source)})


def call(b: Builder, node: Node, given: Given) -> Cotangents:
    """Another layer: its graph is differentiated where it stands."""
    raise NoGradient(node, "a called layer is differentiated on its own")


# --- systems given by their products ------------------------------------------------------------
