"""The reference semantics of a layer, in plain torch: the oracle of the project.

Written for clarity alone. A recurrence is a loop over tokens, an attend makes every pair of
tokens. Inside, a value is a `Named` tensor; outside, a plain tensor whose dims are its node's axes.
`MEANING` has one function for each op; those of tensor ops are in `meaning_ops.py`. Float64 unless
another dtype is asked for; differentiable by autograd.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from archc.ir import chunk as ck
from archc.ir import layer as ir
from archc.ir import meaning_ops as ops
from archc.ir.graph import Graph, Node
from archc.ir.meaning_ops import Evaluation, Scope
from archc.ir.named import Named
from archc.ir.sizes import Number, callee_sizes, resolve_sizes
from archc.ir.value_names import state_before
from archc.tables import complete

Results = dict[str, Named]
"""The values of a Recurrence, an Attend or a Call by name; `Result` reads one of them."""


def evaluate(
    layer: ir.Layer,
    inputs: Mapping[str, Tensor],
    params: Mapping[str, Tensor],
    sizes: Mapping[str, Number],
    *,
    states: Mapping[str, Tensor] | None = None,
    layers: Mapping[str, Callable[[Tensor], Tensor]] | None = None,
    dtype: torch.dtype = torch.float64,
    watch: Callable[..., None] | None = None,
) -> Evaluation:
    """The outputs of a layer for its inputs, outside training (dropout keeps everything).

    inputs: by name, each with the axes of its declaration after batch and stream (`[B, T, ...]`);
    params: by dotted path (`W_q`, `layers.0.mixer.W_q`); sizes: as `resolve_sizes` takes them;
    states: initial states of recurrences by dotted name, in place of those of the spec; layers:
    what layers that are arguments of the spec do, by path (one that is missing does nothing);
    watch: is shown every node with its prefix, operands and value, in bodies at every token.
    Without an optional input, outputs that need it are left out. Raises ArchError for sizes that
    are refused, ValueError for a tensor of a wrong shape, KeyError for one that is missing,
    IndexError for an index (a token id) out of range.
    """
    tensors = [*inputs.values(), *params.values()]
    device = tensors[0].device if tensors else torch.device("cpu")
    like = torch.zeros((), dtype=dtype, device=device)
    given = {
        op.name: Named(inputs[op.name], op.type.names)
        for _, op in layer.inputs
        if op.name in inputs or not op.optional
    }
    known = resolve_sizes(layer, sizes)
    given_parts = (params, states or {}, layers or {})
    scope = Scope(known, given, *given_parts, like, Evaluation(), outputs_of, watch=watch)
    outputs = _layer(layer, scope)
    scope.found.outputs = {name: value.data for name, value in outputs.items()}
    return scope.found


def _layer(layer: ir.Layer, scope: Scope) -> Results:
    """The layer's outputs; its named values and final states are noted in `scope.found`."""
    left_out: set[int] = set()  # what an optional input that was not given would be needed for
    for id, op in layer.inputs:
        if op.name in scope.inputs:
            scope.learn(op.name, op.type.axes, scope.inputs[op.name].data.shape)
        else:
            left_out |= {id, *layer.graph.descendants(id)}
    nodes = tuple(node for node in layer.graph if node.id not in left_out)
    values = compute(nodes, scope)
    for node in nodes:
        value = values[node.id]
        if node.name is not None and isinstance(value, Named):
            scope.found.values[scope.prefix + node.name] = value.data
    return {name: values[id] for name, id in layer.graph.outputs.items() if id in values}


def compute(nodes: Sequence[Node], scope: Scope) -> dict[int, Any]:
    """The value of every node, given in dataflow order: Results for a region, else a Named whose
    dims are the node's axes in order."""
    values: dict[int, Any] = {}
    for node in nodes:
        operands = [values[operand] for operand in node.operands]
        value = MEANING[type(node.op)](node, scope, *operands)
        if isinstance(value, Named):
            value = Named(value.to(node.type.names), node.type.names)
        if scope.watch is not None:
            scope.watch(node, scope.prefix, operands, value)
        values[node.id] = value
    return values


def outputs_of(graph: Graph, scope: Scope) -> Results:
    """The outputs of a graph inside of an op, of inputs that the scope has."""
    values = compute(tuple(graph), scope)
    return {name: values[id] for name, id in graph.outputs.items()}


def recurrence(node: Node, scope: Scope, *operands: Named) -> Results:
    """The body token by token, each time with the states that the token before left."""
    op, stream = node.op, node.op.stream.name
    nodes, outputs = tuple(op.body), op.body.outputs
    captures = dict(zip(op.captures, operands, strict=False))
    states = _initial_states(node, scope, operands[len(captures) :])
    (length,) = scope.shape([op.stream])
    steps: dict[str, list[Tensor]] = {name: [] for name in outputs}
    for t in range(length)[:: -1 if op.reverse else 1]:
        token = {name: _at(value, stream, t) for name, value in captures.items()}
        before = {state_before(name): value for name, value in states.items()}
        values = compute(nodes, replace(scope, inputs={**token, **before}))
        for state in op.states:
            states[state.name] = _as_state(values[outputs[state.name]], state, scope)
        for name, id in outputs.items():
            steps[name].append(values[id].data)
    for name, value in states.items():
        scope.found.states[scope.prefix + name] = value.data
    results: Results = {}
    for name, id in outputs.items():
        axes = op.body[id].type.axes
        empty = scope.like.new_zeros([0, *scope.shape(axes)])
        made = steps[name][:: -1 if op.reverse else 1]
        data = torch.stack(made) if length else empty
        results[name] = Named(data, (stream, *(axis.name for axis in axes)))
    return results


def _initial_states(node: Node, scope: Scope, operands: Sequence[Named]) -> Results:
    """The states before the first token: given from outside, or the initial values of the spec."""
    states: Results = {}
    for state, start in zip(node.op.states, operands, strict=True):
        path = scope.prefix + state.name
        if path in scope.states:
            scope.learn(path, state.axes, scope.states[path].shape)
            names = tuple(axis.name for axis in state.axes)
            states[state.name] = _as_state(Named(scope.states[path], names), state, scope)
        else:
            states[state.name] = _as_state(start, state, scope)
    return states


def _as_state(value: Named, state: ir.State, scope: Scope) -> Named:
    """A value broadcast to the axes of a state."""
    names = tuple(axis.name for axis in state.axes)
    return Named(scope.real(value.to(names)).expand(scope.shape(state.axes)), names)


def _at(value: Named, stream: str, t: int) -> Named:
    """A value at one token; one that has no stream is the same at every token."""
    if stream not in value.names:
        return value
    rest = tuple(name for name in value.names if name != stream)
    return Named(value.data.select(value.names.index(stream), t), rest)


def attend(node: Node, scope: Scope, *operands: Named) -> Results:
    """The body once, on values along the axes of readers and of tokens read."""
    op = node.op
    names = {"reader": {}, "read": {op.source: op.read.name}}
    if op.path is not None:
        names["path"] = {op.source: op.path.name}
    inputs = {
        name: value.renamed(names[role])
        for (name, role), value in zip(op.captures, operands, strict=True)
    }
    return outputs_of(op.body, replace(scope, inputs=inputs))


def evaluate_graph(
    graph: Graph, inputs: Mapping[str, Tensor], sizes: Mapping[str, Number]
) -> dict[str, Tensor]:
    """The outputs of a graph without parameters, such as a chunked form or its gradient.

    inputs: by name, with the axes of their types; sizes: of every symbol that no input brings.
    """
    like = torch.zeros((), dtype=torch.float64)
    types = {node.op.name: node.type for node in graph if isinstance(node.op, ir.Input)}
    given = {name: Named(inputs[name], type.names) for name, type in types.items()}
    scope = Scope(dict(sizes), given, {}, {}, {}, like, Evaluation(), outputs_of)
    for name, type in types.items():
        scope.learn(name, type.axes, inputs[name].shape)
    values = compute(tuple(graph), scope)
    return {name: values[id].data for name, id in graph.outputs.items()}


def result(node: Node, scope: Scope, owner: Results) -> Named:
    return owner[node.op.name]


def call(node: Node, scope: Scope, *operands: Named) -> Results:
    """The callee on the operands, in a scope of its own; axes are renamed on the way in and out."""
    op = node.op
    axes = dict(op.axes)  # the caller's axis for each of the callee's
    inputs = {}
    for (_, input), operand in zip(op.callee.inputs, operands, strict=True):
        wanted = [axes.get(axis.name, axis) for axis in input.type.axes]
        data = operand.to([axis.name for axis in wanted]).expand(scope.shape(wanted))
        inputs[input.name] = Named(data, input.type.names)
    inner = replace(
        scope,
        sizes=callee_sizes(op, scope.sizes),
        inputs=inputs,
        prefix=f"{scope.prefix}{op.path}.",
        numbers={},
    )
    outputs = _layer(op.callee, inner)
    if op.callee.kind == "argument" and inner.prefix[:-1] in scope.layers:
        applied = scope.layers[inner.prefix[:-1]]
        outputs = {name: Named(applied(v.data), v.names) for name, v in outputs.items()}
    caller = {name: axis.name for name, axis in axes.items()}
    return {name: value.renamed(caller) for name, value in outputs.items()}


MEANING: dict[type, Callable[..., Named | Results]] = {
    ir.Input: ops.input_,
    ir.Param: ops.param,
    ir.Constant: ops.constant,
    ir.Position: ops.position,
    ir.Delta: ops.delta,
    ir.Noise: ops.noise,
    ir.Elementwise: ops.elementwise,
    ir.Reduce: ops.reduce,
    ir.Contract: ops.contract,
    ir.Gather: ops.gather,
    ir.Scatter: ops.scatter,
    ir.Join: ops.join,
    ir.Reshape: ops.reshape,
    ir.Top: ops.top,
    ir.Solve: ops.solve,
    ir.Shift: ops.shift,
    ir.Window: ops.window,
    ir.Softmax: ops.softmax,
    ir.Segment: ops.segment,
    ir.Substitute: ops.substitute,
    ir.Recurrence: recurrence,
    ir.Attend: attend,
    ir.Result: result,
    ir.Call: call,
    **{op: lambda node, scope, *on: node.op.meaning(node, scope, *on) for op in ck.CHUNK_OPS},
}
"""The reference semantics of each op, in torch."""
complete("`MEANING` of archc/ir/meaning.py", MEANING, (*ir.OPS, *ck.CHUNK_OPS))
