"""Layer IR -> layer IR: every recurrence that has a chunked form gets it beside its loop.

`recurrence(k, v, ..)` -> the same with `chunked`, the form for many tokens at once, and its
gradient. A layer that says `chunk: sequential` is left alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from archc.functions.interval import Interval
from archc.ir import chunk as ck
from archc.ir import layer as ir
from archc.ir.graph import Graph, Node
from archc.ir.plan import default_sizes
from archc.ir.rewrite import rewrite
from archc.ir.sizes import Number
from archc.numerics.constants import required
from archc.numerics.propagation import intervals
from archc.numerics.stated import stated
from archc.recurrence.chunk.by_law import without_laws
from archc.recurrence.chunk.derive import Derived, derive

Differentiate = Callable[
    [Graph, Sequence[str], Sequence[str]], tuple[Graph, Graph, tuple[str, ...]]
]
"""The gradient of a graph with respect to some inputs, from the cotangents of some outputs: the
graph with what it saves as further outputs, the backward graph, and the names of what is saved."""


def chunked(layer: ir.Layer, differentiate: Differentiate) -> ir.Layer:
    """The layer, its recurrences with the chunked form that was derived for them, if any."""
    facts = {id(node.op.body): (each, known) for each, node, known in _recurrences(layer)}
    done: dict[int, tuple[ck.ChunkForm | None, Graph]] = {}
    kept: list[Graph] = []  # so that no id of a body is used again

    def with_chunks(graph: Graph, node: Node) -> int | None:
        """recurrence(..) -> recurrence(..) with a chunked form"""
        if not isinstance(node.op, ir.Recurrence) or node.op.chunked is not None:
            return None
        key = id(node.op.body)
        if key not in done:
            home, known = facts.get(key, (layer, _captured(node, intervals(graph))))
            usual = default_sizes(home)
            derived = None if home.chunk.sequential else _derived(graph, node, known, usual)
            form = None if derived is None else _form(derived, differentiate)
            done[key] = form, node.op.body if derived is None else _told(node.op.body, derived)
            kept.append(node.op.body)
        form, body = done[key]
        if form is None:
            return None
        op = replace(without_laws(replace(node.op, body=body)), chunked=form)
        return graph.add(op, *node.operands)

    return rewrite(layer, [with_chunks])


def _told(body: Graph, derived: Derived) -> Graph:
    """The body, its systems marked that were found to be symmetric and positive definite."""
    if not derived.definite:
        return body
    told = body.copy()
    for id in derived.definite:
        told.replace_op(id, replace(told[id].op, definite=True))
    return told


def _form(derived: Derived, differentiate: Differentiate) -> ck.ChunkForm | None:
    """The chunked form of a Recurrence with its gradient."""
    if derived.graph is None:
        return None
    inputs = [
        n.op.name for n in derived.graph if isinstance(n.op, ir.Input) and n.type.dtype == "real"
    ]
    outputs = [
        name for name, id in derived.graph.outputs.items()
        if derived.graph[id].type.dtype == "real"
    ]  # fmt: skip
    forward, backward, saved = differentiate(derived.graph, inputs, outputs)
    return ck.ChunkForm(forward, backward, saved, derived.notes)


def derived_of(
    graph: Graph,
    node: Node,
    known: Mapping[int, Interval] | None = None,
    sizes: Mapping[str, Interval] = MappingProxyType({}),
    usual: Mapping[str, Number] = MappingProxyType({}),
) -> Derived:
    """The derivation of a Recurrence in its graph; `known` are intervals of nodes, `sizes` those of
    sizes and options, `usual` their defaults."""
    inside = _captured(node, intervals(graph) if known is None else known)
    return _derived(graph, node, {**sizes, **inside}, usual)


def _derived(
    graph: Graph, node: Node, known: Mapping[str, Interval], usual: Mapping[str, Number]
) -> Derived:
    """The same, with intervals of the captures, and of sizes and options."""
    operands = ir.captured(node)
    read = {graph[user].op.name for user in graph.users(node.id)}
    wanted = [name for name in node.op.body.outputs if name in read]
    types = {name: graph[id].type for name, id in operands.items()}
    initial = {state.name: known[ck.start(state.name)] for state in node.op.states}
    return derive(node.op, types, known, wanted, initial, usual)


def _captured(node: Node, known: Mapping[int, Interval]) -> dict[str, Interval]:
    """Intervals of what enters a Recurrence: its captures, and `S[0]` for each state, by name."""
    names = (*node.op.captures, *(ck.start(state.name) for state in node.op.states))
    return {name: known[id] for name, id in zip(names, node.operands, strict=True)}


def studies(layer: ir.Layer) -> Iterator[tuple[ir.Layer, Node, Derived]]:
    """The recurrences of a layer and, each once, of the layers it calls, with what was found."""
    for each, node, known in _recurrences(layer):
        yield each, node, _derived(each.graph, node, known, default_sizes(each))


def sizes_of(layer: ir.Layer) -> dict[str, Interval]:
    """The intervals of sizes and options, as far as a layer says."""
    return {name: found for name, found in required(layer).items() if isinstance(name, str)}


def _recurrences(layer: ir.Layer) -> Iterator[tuple[ir.Layer, Node, dict[str, Interval]]]:
    """The recurrences of a layer and, each once, of the layers it calls, with the intervals of
    their captures, and of sizes and options, as far as the layer itself says."""
    seen: set[int] = set()
    waiting = [layer]
    while waiting:
        each = waiting.pop(0)
        if id(each) in seen:
            continue
        seen.add(id(each))
        recurrences = [node for node in each.graph if isinstance(node.op, ir.Recurrence)]
        known = stated(each) if recurrences else {}
        for node in recurrences:
            yield each, node, sizes_of(each) | _captured(node, known)
        waiting += [call.callee for _, call in each.calls]
