"""Layer IR -> layer IR: some of the optional inputs are given, and the others are not there."""

from __future__ import annotations

from dataclasses import replace

from archc.ir import layer as ir


def with_inputs(layer: ir.Layer, given: frozenset[str]) -> ir.Layer:
    """The layer with those of its optional inputs that are given, and without all others and what
    depends on them."""
    if not any(op.optional for _, op in layer.inputs):
        return layer
    graph = layer.graph.copy()
    away = {id for id, op in layer.inputs if op.optional and op.name not in given}
    lost = set(away).union(*(graph.descendants(id) for id in away))
    graph.outputs = {name: id for name, id in graph.outputs.items() if id not in lost}
    for id, op in layer.inputs:
        if op.optional and id not in away:
            graph.replace_op(id, replace(op, optional=False))
    graph.prune(keep=[id for id, _ in layer.inputs if id not in away])
    return replace(layer, graph=graph)
