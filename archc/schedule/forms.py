"""Layer IR -> layer IR: the chunked forms of a layer in other words, with their gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from archc.ir import chunk as ck
from archc.ir import layer as ir
from archc.ir.graph import Graph, Node
from archc.ir.rewrite import rewrite

Differentiated = tuple[Graph, Graph, tuple[str, ...]]
"""A graph with its saved values as further outputs, the backward graph, and their names."""


Differentiate = Callable[[Graph, Sequence[str], Sequence[str]], Differentiated]
"""The gradient of a graph with respect to some inputs, from the cotangents of some outputs."""


def with_forms(layer: ir.Layer, change: Callable[[ck.ChunkForm], ck.ChunkForm | None]) -> ir.Layer:
    """The layer with its chunked forms changed; a form stays where that gives None."""
    done: dict[int, ck.ChunkForm | None] = {}

    def changed(graph: Graph, node: Node) -> int | None:
        """recurrence(..) -> recurrence(..) with another chunked form"""
        form = node.op.chunked if isinstance(node.op, ir.Recurrence) else None
        if form is None:
            return None
        if id(form) not in done:
            done[id(form)] = change(form)
        new = done[id(form)]
        return None if new is None else graph.add(replace(node.op, chunked=new), *node.operands)

    return rewrite(layer, [changed])


def bare(form: ck.ChunkForm) -> Graph:
    """The outputs of a form, without the values that it saves."""
    graph = form.forward.copy()
    graph.outputs = {n: id for n, id in graph.outputs.items() if n not in form.saved}
    return graph


def derived(form: ck.ChunkForm, graph: Graph, differentiate: Differentiate) -> ck.ChunkForm:
    """A form with another graph, and with the gradient of that if it has one."""
    inputs = [node for node in graph if isinstance(node.op, ir.Input)]
    graph.prune([node.id for node in inputs])
    if form.backward is None:
        return replace(form, forward=graph, saved=())
    wanted = [node.op.name for node in inputs if node.type.dtype == "real"]
    outputs = [n for n, id in graph.outputs.items() if graph[id].type.dtype == "real"]
    forward, backward, saved = differentiate(graph, wanted, outputs)
    return replace(form, forward=forward, backward=backward, saved=saved)
