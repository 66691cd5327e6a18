"""A token of each sequence in generation as a list: what is launched on a GPU before the memory, by
it and after, where products with parameters allow no fewer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from archc.backends.eager.emit import called_first
from archc.backends.eager.joint_products import weight_of
from archc.backends.eager.memory import memory_of
from archc.compile import for_kernels, lowered, token_regions, with_epilogues, with_prologues
from archc.ir import layer as ir
from archc.ir.graph import Graph, Node
from archc.lowering.token import RegionKernels

TABLES = (ir.Input, ir.Param, ir.Constant, ir.Position, ir.Result)
"""Ops that nothing is launched for."""


@dataclass(frozen=True)
class Launch:
    """One launch: the nodes that it makes, what it is called, and whether it is a product."""

    nodes: frozenset[int]
    title: str
    product: bool = False


def as_text(layer: ir.Layer) -> str:
    """The launches of a layer that keeps something, and of those that it calls."""
    ready = for_kernels(with_prologues(with_epilogues(lowered(layer))))
    return "\n\n".join(filter(None, ("\n".join(_lines(each)) for each in called_first(ready))))


def _lines(layer: ir.Layer) -> Iterator[str]:
    graph = layer.graph
    memories = [node for node in graph if isinstance(node.op, ir.Recurrence | ir.Attend)]
    if not memories:
        return
    launches = [*_products(graph), *_regions(layer)]
    made = {id for each in launches for id in each.nodes}
    after = set[int]().union(*(graph.descendants(node.id) for node in memories))
    parts = {
        "before": [each for each in launches if not each.nodes & after],
        "memory": [Launch(frozenset([node.id]), _called(graph, node)) for node in memories],
        "after": [each for each in launches if each.nodes & after],
    }
    count = sum(len(each) for each in parts.values())
    products = sum(each.product for each in launches)
    yield f"{layer.name}: a token of each sequence in generation, {count} launches on a GPU"
    for name, each in parts.items():
        if each:
            ordered = sorted(each, key=lambda launch: max(launch.nodes))
            yield f"  {name:<6}  {len(each):>2}  {'; '.join(launch.title for launch in ordered)}"
    rest = [node for node in graph if _is_left(node, made, memories)]
    names = [node.name or type(node.op).__name__.lower() for node in rest]
    fields = [each for each in memory_of(layer).fields if each.kind in ("past", "seen")]
    written = {id for id in made if isinstance(graph[id].op, ir.Window)}
    kept = [each.name for each in fields if each.kind == "seen" or each.node not in written]
    if names or kept:
        yield f"  besides, in PyTorch: {', '.join(dict.fromkeys([*names, *kept]))}"
    yield f"  {products} are products with parameters, each of another value, or for several"
    yield "  sequences of another width; a kernel stands between two of them"


def _products(graph: Graph) -> Iterator[Launch]:
    """Products with parameters: those of one value are one, by copies side by side."""
    params = {node.id for node in graph if isinstance(node.op, ir.Param)}
    groups: dict[tuple[int, int], list[Node]] = {}
    for node in graph:
        if not isinstance(node.op, ir.Contract) or "batch" not in node.type.names:
            continue
        own = [operand for operand in node.operands if operand in params]
        if len(node.operands) != 2 or len(own) != 1 or len(node.op.out) == 0:
            continue
        known, read = weight_of(graph, node, params), [*node.operands]
        read.remove(own[0])
        if any(isinstance(graph[id].op, ir.Window) for id in read):
            continue  # a convolution
        key = (read[0], -1) if known is not None and known[1] == 1 else (read[0], node.id)
        groups.setdefault(key, []).append(node)
    for nodes in groups.values():
        weights = [graph[o].op.name for node in nodes for o in node.operands if o in params]
        how = " side by side" if len(weights) > 1 else ""
        yield Launch(frozenset(n.id for n in nodes), f"{' '.join(weights)}{how}", True)


def _regions(layer: ir.Layer) -> Iterator[Launch]:
    for each in token_regions(layer):
        if isinstance(each, RegionKernels):
            yield Launch(each.region.members, each.region.name)


def _called(graph: Graph, node: Node) -> str:
    """A memory by its states, an attend by what it makes."""
    if isinstance(node.op, ir.Recurrence):
        return f"the step of {', '.join(state.name for state in node.op.states)}"
    users = [graph[id] for id in graph.users(node.id)]
    return f"the attend of {', '.join(dict.fromkeys(u.op.name for u in users))}"


def _is_left(node: Node, made: set[int], memories: list[Node]) -> bool:
    """Whether something is launched for a value that no launch here makes."""
    if node.id in made or node in memories or isinstance(node.op, TABLES):
        return False
    return "batch" in node.type.names
