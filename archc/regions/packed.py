"""A token region with what is kept of it for the next call, and for packed sequences too."""

from __future__ import annotations

from dataclasses import replace

from archc.ir import layer as ir
from archc.ir.free_names import marked
from archc.ir.token_region import TokenRegion


def with_tails(region: TokenRegion, packed: bool) -> TokenRegion:
    """The region with its tails: what it looks back on and makes itself leaves it too, the last
    tokens of each sequence; and with the pasts of the next call that kernels can write. `packed`:
    there may be a table of packed sequences."""
    graph, tails, nexts = region.graph.copy(), dict[str, str](), dict[str, str]()
    taken = {*region.reads, *region.pasts, *graph.outputs}
    for past in region.pasts:
        looked = region.choice(past).operands[1]
        if not isinstance(graph[looked].op, ir.Input):
            name = marked(f"{past}_next", taken, "_")
            graph.outputs[name] = looked
            tails[name] = past
            taken.add(name)
        if isinstance(region.reader(past).op, ir.Window):
            name = marked(f"{past}_after", taken, "_")
            nexts[name] = past
            taken.add(name)
    return replace(region, graph=graph, packed=packed, tails=tails, nexts=nexts)
