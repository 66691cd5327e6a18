"""What a layer says about its values: requirements on sizes, and promises of `chunk: bound`."""

from __future__ import annotations

from archc.ir import layer as ir
from archc.numerics.arithmetic import Interval, both
from archc.numerics.constants import required
from archc.numerics.interval import Given, intervals


def stated(layer: ir.Layer) -> dict[int, Interval]:
    """The interval of every value of a layer, with all that the layer itself says about them."""
    given: dict[int | str, Interval] = required(layer)
    if not layer.chunk.bounds:
        return intervals(layer.graph, given)
    for node in layer.graph:
        promised = [bound for bound in layer.chunk.bounds if bound.of(node)]
        if promised:
            found = _before(layer, node.id, given)
            for bound in promised:
                limit = Interval(bound.low, bound.high, bound.open_low, bound.open_high)
                found = both(found, limit)
            given[node.id] = found
    return intervals(layer.graph, given)


def _before(layer: ir.Layer, id: int, given: Given) -> Interval:
    """The interval of a value without promises about itself."""
    return intervals(layer.graph, given)[id]


def recurrences(layer: ir.Layer) -> dict[int, ir.Layer]:
    """The layer, of those reached from this one, that each recurrence is in, by the id of its
    body."""
    found: dict[int, ir.Layer] = {}
    seen: set[int] = set()
    waiting = [layer]
    while waiting:
        each = waiting.pop()
        if id(each) not in seen:
            seen.add(id(each))
            found |= {id(n.op.body): each for n in each.graph if isinstance(n.op, ir.Fold)}
            waiting += [call.callee for _, call in each.calls]
    return found
