"""A layer whose recurrences are computed from their normal forms, for comparison with the layer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from archc.ir import layer as ir
from archc.recurrence.affine.rebuilt import rebuilt as rebuilt_body


def recurrences(layer: ir.Layer) -> Iterator[ir.Recurrence]:
    """The recurrences of a layer and of those it calls."""
    for node in layer.graph:
        if isinstance(node.op, ir.Recurrence):
            yield node.op
        elif isinstance(node.op, ir.Call):
            yield from recurrences(node.op.callee)


def rebuilt(layer: ir.Layer) -> ir.Layer:
    """The same layer with the body of each of its own recurrences made from normal forms."""
    graph = layer.graph.copy()
    for node in tuple(graph):
        if isinstance(node.op, ir.Recurrence):
            body = rebuilt_body(node.op)
            recurrence = graph.add(replace(node.op, body=body), *node.operands)
            graph.substitute(node.id, recurrence)
    graph.prune([n.id for n in graph if isinstance(n.op, ir.Input | ir.Param)])
    return replace(layer, graph=graph)
