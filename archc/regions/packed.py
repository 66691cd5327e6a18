"""A token region with what is kept of it for the next call, and for packed sequences too."""

from __future__ import annotations

from dataclasses import replace

from archc.ir import layer as ir
from archc.ir.free_names import marked
from archc.ir.graph import Graph
from archc.ir.token_region import TokenRegion


def with_tails(region: TokenRegion, packed: bool) -> TokenRegion:
    """The region with its tails: what it looks back on and makes itself leaves it too, the last
    tokens of each sequence. `packed`: there may be a table of packed sequences."""
    graph, tails = region.graph.copy(), dict[str, str]()
    for past in region.pasts:
        looked = looked_at(graph, past)
        if not isinstance(graph[looked].op, ir.Input):
            taken = {*region.reads, *region.pasts, *graph.outputs}
            name = marked(f"{past}_next", taken, "_")
            graph.outputs[name] = looked
            tails[name] = past
    return replace(region, graph=graph, packed=packed, tails=tails)


def looked_at(graph: Graph, past: str) -> int:
    """The value that an op looks back on: x of `where(position >= 0, x, past)`."""
    (input,) = (n.id for n in graph if isinstance(n.op, ir.Input) and n.op.name == past)
    (choice,) = graph.users(input)
    return graph[choice].operands[1]
