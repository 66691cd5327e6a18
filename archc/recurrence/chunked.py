"""Layer IR -> layer IR: every recurrence that has a chunked form gets it beside its loop.

`fold(k, v, ..)` -> the same with `chunked`, the form for many tokens at once and its gradient.
A layer that says `chunk: sequential` is left alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from archc.ir import chunk as ck
from archc.ir import layer as ir
from archc.ir.graph import Graph, Node
from archc.ir.rewrite import rewrite
from archc.numerics.interval import Interval, intervals
from archc.recurrence.derive import Derived, derive


Differentiate = Callable[
    [Graph, Sequence[str], Sequence[str]], tuple[Graph, Graph, tuple[str, ...]]
]
"""The gradient of a graph with respect to some inputs, from the cotangents of some outputs: the
graph with what it saves as further outputs, the backward graph, and the names of what is saved."""


def chunked(layer: ir.Layer, differentiate: Differentiate) -> ir.Layer:
    """The layer, its recurrences with the chunked form that was derived for them, if any."""
    done: dict[int, ck.ChunkForm | None] = {}
    kept: list[Graph] = []  # so that no id of a body is used again

    def with_chunks(graph: Graph, node: Node) -> int | None:
        """fold(..) -> fold(..) with a chunked form"""
        if not isinstance(node.op, ir.Fold) or node.op.chunked is not None:
            return None
        key = id(node.op.body)
        if key not in done:
            done[key] = _form(graph, node, _said(known, layer, graph), differentiate)
            kept.append(node.op.body)
        form = done[key]
        if form is None:
            return None
        return graph.add(replace(node.op, chunked=form), *node.operands)

    return layer if layer.chunk.sequential else rewrite(layer, [with_chunks])


def _form(graph: Graph, node: Node, differentiate: Differentiate) -> ck.ChunkForm | None:
    """The chunked form of a Fold with its gradient."""
    derived = derived_of(graph, node)
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


def derived_of(graph: Graph, node: Node, known: Mapping[int, Interval] | None = None) -> Derived:
    """What the derivation finds out about a Fold in its graph."""
    known = intervals(graph) if known is None else known
    operands = dict(zip(node.op.captures, node.operands, strict=False))
    read = {graph[user].op.name for user in graph.users(node.id)}
    wanted = [name for name in node.op.body.outputs if name in read]
    types = {name: graph[id].type for name, id in operands.items()}
    return derive(node.op, types, {name: known[id] for name, id in operands.items()}, wanted)


def studies(layer: ir.Layer) -> Iterator[tuple[ir.Layer, Node, Derived]]:
    """The recurrences of a layer and, each once, of the layers it calls, with what was found."""
    seen: set[int] = set()
    waiting = [layer]
    while waiting:
        each = waiting.pop(0)
        if id(each) in seen:
            continue
        seen.add(id(each))
        known = intervals(each.graph)
        for node in each.graph:
            if isinstance(node.op, ir.Fold):
                yield each, node, derived_of(each.graph, node, known)
        waiting += [call.callee for _, call in each.calls]
