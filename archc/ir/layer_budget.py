"""Limits of a compilation that an elaborated layer may exceed: the number of layers, where a layer
that is called twice counts twice, and the number of states of a recurrence."""

from __future__ import annotations

from archc.ir import layer as ir
from archc.limits import LAYERS, STATES, over_budget


def check_budget(layer: ir.Layer) -> None:
    """Refuse a layer that exceeds the budget."""
    _layers(layer, {})


def _layers(layer: ir.Layer, known: dict[int, int]) -> int:
    """How many layers it comes to."""
    if id(layer) in known:
        return known[id(layer)]
    total = 1
    for node in layer.graph:
        if isinstance(node.op, ir.Recurrence) and len(node.op.states) > STATES:
            found = f"a recurrence of {len(node.op.states)} states, and at most {STATES} are done"
            raise over_budget(found, node.span or layer.span)
        if isinstance(node.op, ir.Call):
            total += _layers(node.op.callee, known)
        if total > LAYERS:
            found = f"`{layer.name}` comes to more than {LAYERS} layers"
            raise over_budget(found, node.span or layer.span)
    known[id(layer)] = total
    return total
