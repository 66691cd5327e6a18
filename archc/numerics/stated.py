"""The facts that a layer states about its values: requirements on sizes, and `chunk: bound`."""

from __future__ import annotations

from archc.functions.interval import Interval, both
from archc.functions.interval_rules import logarithm
from archc.ir import layer as ir
from archc.ir.chunk_section import Bound
from archc.ir.graph import Node
from archc.ir.value_names import log_name
from archc.numerics.constants import required
from archc.numerics.propagation import Given, intervals


def stated(layer: ir.Layer) -> dict[int, Interval]:
    """The interval of every value of a layer, with all that the layer itself says about them."""
    given: dict[int | str, Interval] = required(layer)
    if not layer.chunk.bounds:
        return intervals(layer.graph, given)
    for node in layer.graph:
        limits = (_limit(bound, node) for bound in layer.chunk.bounds)
        promised = [limit for limit in limits if limit is not None]
        if promised:
            found = _before(layer, node.id, given)
            for limit in promised:
                found = both(found, limit)
            given[node.id] = found
    return intervals(layer.graph, given)


def _limit(bound: Bound, node: Node) -> Interval | None:
    """The interval that a promise gives a value: the one it names, or the logarithm that enters a
    recurrence in place of it."""
    limit = Interval(bound.low, bound.high, bound.open_low, bound.open_high)
    if bound.of(node):
        return limit
    log = bound.span is not None and bound.span is node.span
    if log and node.name is not None and node.name.rstrip("'") == log_name(bound.name):
        return logarithm(limit)
    return None


def _before(layer: ir.Layer, id: int, given: Given) -> Interval:
    """The interval of a value without promises about itself."""
    return intervals(layer.graph, given)[id]


def recurrences(layer: ir.Layer) -> dict[int, ir.Layer]:
    """The layer that each recurrence is in, of those reached from this one, by its body's id."""
    found: dict[int, ir.Layer] = {}
    seen: set[int] = set()
    waiting = [layer]
    while waiting:
        each = waiting.pop()
        if id(each) not in seen:
            seen.add(id(each))
            found |= {id(n.op.body): each for n in each.graph if isinstance(n.op, ir.Recurrence)}
            waiting += [call.callee for _, call in each.calls]
    return found
