"""What to call things that the spec has no name for: after what they serve."""

from __future__ import annotations

import re

from archc.backends.writer import identifier, snake

from archc.ir import layer as ir
from archc.ir.graph import Graph, Node

_LISTED = re.compile(r"(.+)\.(\d+)")


def nearest_name(graph: Graph, id: int) -> str:
    """The name of the value itself or of the nearest named value that it goes into."""
    seen, row = {id}, [id]
    while row:
        for user in row:
            outputs = [name for name, output in graph.outputs.items() if output == user]
            named = graph[user].name or next(iter(outputs), None)
            if named is not None:
                return named
        row = sorted({u for user in row for u in graph.users(user)} - seen)
        seen |= set(row)
    return "value"


def region_name(layer: str, graph: Graph, node: Node) -> str:
    """`layer_memory`; with several memories in a layer, each is called after what it gives:
    `layer_memory_o`."""
    regions = [n for n in graph if isinstance(n.op, ir.Fold | ir.Pair)]
    name = f"{snake(layer)}_memory"
    if len(regions) == 1:
        return name
    first = next(iter(node.op.body.outputs))
    used = [graph[user].op.name for user in graph.users(node.id)]
    return f"{name}_{identifier(used[-1] if used else first)}"


def listed(path: str) -> tuple[str, int] | None:
    """(`layers`, 3) for `layers.3`: the place of a sub-layer in a list; None for other paths."""
    match = _LISTED.fullmatch(path)
    return (match[1], int(match[2])) if match else None
