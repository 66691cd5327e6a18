"""A composition law of the spec becomes part of a recurrence: its three layers as graphs."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from archc.diagnostics import did_you_mean
from archc.dims import BATCH, Axis
from archc.elaborate import in_place, ops
from archc.elaborate.callee import inputs_of
from archc.elaborate.law_rule import HELP, ROLES, LawRule, outputs_of, wrong
from archc.elaborate.scope import Scope
from archc.elaborate.values import Frame, LayerRef, Tensor
from archc.ir import chunk as ck
from archc.ir import layer as ir
from archc.ir.given_law import GivenLaw
from archc.ir.graph import Graph, Type
from archc.ir.typing import layer_graph
from archc.ir.value_names import state_before
from archc.syntax import tree

ALGEBRA = (
    ir.Input, ir.Constant, ir.Position, ir.Delta, ir.Elementwise, ir.Reduce, ir.Contract,
    ir.Gather, ir.Scatter, ir.Top, ir.Solve,
)  # fmt: skip
"""Ops that may be made of summaries and states: each value by itself, whatever token it is of."""


def laws_of(
    inner: Scope, states: Mapping[str, tuple[Axis, ...]], heads: Sequence[Axis]
) -> tuple[GivenLaw, ...]:
    """The laws of a recurrence's states, given their axes. The body puts out the summaries."""
    shared, found = (BATCH, *inner.extra, *heads), list[GivenLaw]()
    for each in inner.context.laws:
        if set(each.states) & set(states) and not each.used:
            taken = {part for law in found for part in law.parts}
            found.append(_law(inner, each, states, shared, taken))
    return tuple(found)


def _law(
    inner: Scope,
    made: LawRule,
    states: Mapping[str, tuple[Axis, ...]],
    shared: tuple[Axis, ...],
    taken: Collection[str],
) -> GivenLaw:
    """One law; `shared` are the axes that every part of a summary has, `taken` names of parts."""
    made.used = True
    stranger = next((name for name in made.states if name not in states), None)
    if stranger is not None:
        inputs = {each.name: each for each in inputs_of(made.refs["apply"].decl)}
        message = f"`{stranger}` is no state of this recurrence"
        raise wrong(inner, made.at["apply"], message, HELP["apply"], inputs[stranger])
    types: dict[str, Type] = {}
    for output, part in _token(inner, made).items():
        name = f"{output}_{made.states[0]}" if output in taken else output
        types[name] = Type((*shared, *inner.visible(part)))
        inner.frame.graph.outputs[f"{name}@{made.states[0]}"] = part.node
    own = {name: Type(states[name]) for name in made.states}
    merge = {f"{name}.{which}": type for which in (1, 2) for name, type in types.items()}
    apply = {**types, **{ck.start(name): type for name, type in own.items()}}
    text = " ".join(made.rule.span.text.split())
    decls = [(made.refs[role].decl, made.at[role].span) for role in ROLES]
    named = tuple((decl.name, at, decl.header) for decl, at in decls)
    return GivenLaw(
        made.states, tuple(types), _graph(inner, made, "merge", merge, types),
        _graph(inner, made, "apply", apply, {ck.final(n): t for n, t in own.items()}),
        text, made.rule.span, named,
    )  # fmt: skip


def _token(inner: Scope, made: LawRule) -> dict[str, Tensor]:
    """The summary of a token, from values of the recurrence; it depends on no state of the law."""
    ref, at = made.refs["token"], made.at["token"]
    values = []
    for item in inputs_of(ref.decl):
        if inner.find(item.name) is None:
            near = did_you_mean(item.name, _values(inner))
            message = f"`{item.name}` is no value of the recurrence"
            help = near[0] if near else "inputs of the first layer are values of the recurrence"
            raise wrong(inner, at, message, help, item)
        value = ops.tensor(inner, inner.lookup(item.name, at.span), item.span)
        before = {state_before(name) for name in made.states}
        graph = inner.frame.graph
        reads = (graph[id].op for id in (value.node, *sorted(graph.ancestors(value.node))))
        if any(isinstance(op, ir.Input) and op.name in before for op in reads):
            message = f"`{item.name}` depends on the state, and the summary of a token may not"
            raise wrong(inner, at, message, "take what enters the recurrence", item)
        values.append(value)
    graph = inner.frame.graph
    fresh = graph.fresh
    found = in_place.outputs(replace(inner, rows=True), ref, values, at)
    if any(node.id >= fresh and isinstance(node.op, ir.Noise) for node in graph):
        message = f"`{ref.decl.name}` draws random numbers, which are not those of the recurrence"
        raise wrong(inner, at, message, "name the value outside, and take it")
    return {name: _real(inner, value, at) for name, value in found.items()}


def _values(scope: Scope) -> Iterator[str]:
    """Names of values that are visible."""
    here: Scope | None = scope
    while here is not None:
        yield from (name for name in here.names if not isinstance(here.names[name], LayerRef))
        here = here.parent


def _real(scope: Scope, value: Tensor, at: tree.Expr) -> Tensor:
    """A value as real numbers: summaries hold nothing else."""
    if value.type.dtype == "real":
        return value
    return ops.node(scope, ir.Elementwise("real"), value, span=at.span)


def _graph(
    inner: Scope,
    made: LawRule,
    role: str,
    inputs: Mapping[str, Type],
    outputs: Mapping[str, Type],
) -> Graph:
    """`Merge` or `Apply` as a graph of its own, its inputs and outputs in order."""
    ref, at = made.refs[role], made.at[role]
    frame = Frame(layer_graph(), region=True)
    scope = replace(inner, frame=frame, gate=None, rows=True)
    declared = inputs_of(ref.decl)
    given = [
        Tensor(frame, frame.graph.add(ir.Input(name, type), span=item.span), origin=item.span)
        for (name, type), item in zip(inputs.items(), declared, strict=True)
    ]
    own = [_own_axes(scope, item, value) for item, value in zip(declared, given, strict=True)]
    found = in_place.outputs(scope, ref, own, at)
    for (name, type), stmt, value in zip(
        outputs.items(), outputs_of(ref), found.values(), strict=True
    ):
        made_of = _real(scope, value, at)
        frame.graph.outputs[name] = _given_axes(scope, made, role, stmt, made_of, type).node
    frame.graph.prune([value.node for value in given])
    for node in frame.graph:
        if not isinstance(node.op, ALGEBRA):
            message = f"`{ref.decl.name}` is to be made of formulas of its inputs alone"
            raise wrong(inner, at, message, HELP[role], ref.decl.body[0])
    return frame.graph


def _own_axes(scope: Scope, item: tree.Declared, value: Tensor) -> Tensor:
    """An input with its axes as the layer names them: `N[L, K]` and `M[K, J]` have one in common,
    though both are a summary's `[K, K']`."""
    axes = scope.visible(value)
    if len(axes) != len(item.axes or ()):
        return value  # refused where the layer is entered
    pairs = []
    for axis, written in zip(axes, item.axes or (), strict=True):
        name = written.id if isinstance(written, tree.Name) else axis.name
        base = name.rstrip("'")
        own = f"{base}_" if base in scope.hidden else base
        pairs.append((axis, axis.renamed(own + name[len(base) :])))
    if all(axis.name == new.name for axis, new in pairs):
        return value
    return ops.relabel(scope, value, pairs, item.span)


def _given_axes(
    scope: Scope, made: LawRule, role: str, stmt: tree.Output, value: Tensor, type: Type
) -> Tensor:
    """An output with the axes that are wanted, which it has by another name or by the same."""
    got = scope.visible(value)
    wanted = [axis for axis in type.axes if axis.kind == "dim" and axis.name not in scope.hidden]
    names, others = [a.name for a in got], [a.name for a in wanted]
    turned = names != others and sorted(names) == sorted(others)
    if turned or [a.size for a in got] != [a.size for a in wanted]:
        name = made.refs[role].decl.name
        message = f"`{stmt.target.name}` of `{name}` is {ops.shape(scope, value)}"
        raise wrong(scope, made.at[role], f"{message}, not [{', '.join(others)}]", HELP[role], stmt)
    if names == others:
        return value
    return ops.relabel(scope, value, list(zip(got, wanted, strict=True)), stmt.span)
