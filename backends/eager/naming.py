"""Names for values that the spec has no name for: after the op or the output that they serve."""

from __future__ import annotations

import re

from archc.backends.writer import identifier, snake

from archc.ir import layer as ir
from archc.ir.graph import Graph, Node
from archc.ir.roles import captured_as
from archc.ir.value_names import is_saved

_LISTED = re.compile(r"(.+)\.(\d+)")


def nearest_name(graph: Graph, id: int) -> str:
    """The name of the value itself or of the nearest named value that it goes into."""
    seen, row = {id}, [id]
    while row:
        for user in row:
            named = graph[user].name or given_name(graph, user, user == id)
            if named is not None:
                return named
        row = sorted({u for user in row for u in graph.users(user)} - seen)
        seen |= set(row)
    return "value"


def given_name(graph: Graph, id: int, itself: bool = True) -> str | None:
    """The name of a value as an output, or in the loop that it enters. That a value is kept for a
    gradient names nothing but the value `itself`."""
    outputs = [name for name, output in graph.outputs.items() if output == id]
    outputs = [name for name in outputs if itself or not is_saved(name)]
    return outputs[0] if outputs else captured_as(graph, id)


def region_name(layer: str, graph: Graph, node: Node) -> str:
    """`layer_memory`; with several memories in a layer, each is called after what it gives, in the
    words of the spec: `layer_memory_o`."""
    regions = [n for n in graph if isinstance(n.op, ir.Recurrence | ir.Attend)]
    name = f"{snake(layer)}_memory"
    if len(regions) == 1:
        return name
    first = next(iter(node.op.body.outputs))
    results = [graph[user] for user in graph.users(node.id)]
    used = [each.op.name for each in results if each.name] or [each.op.name for each in results]
    return f"{name}_{identifier(used[-1] if used else first)}"


def listed(path: str) -> tuple[str, int] | None:
    """(`layers`, 3) for `layers.3`: the place of a sub-layer in a list; None for other paths."""
    match = _LISTED.fullmatch(path)
    return (match[1], int(match[2])) if match else None
