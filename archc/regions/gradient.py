"""The gradient of a token region: a graph from its inputs and the cotangents of its outputs.

Nothing of the forward is saved but what enters: every op of a region takes less than reading its
value from memory would. The products with parameters before it and behind it keep their operands in
any case.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from archc.ir import layer as ir
from archc.ir.builder import Sharing
from archc.ir.chunk import CHUNK_OPS
from archc.ir.graph import Graph
from archc.ir.token_region import Gradient, TokenRegion, is_token_type
from archc.ir.value_names import cotangent, primal
from archc.regions.inverse import with_gathers

Differentiate = Callable[..., Any]
"""`archc.autodiff.reverse.gradient`, or what hands on to it."""


def gradient_of(region: TokenRegion, differentiate: Differentiate) -> Gradient:
    """The gradients of the real inputs of a region, but of its tables, which are of positions
    alone, and of what is only compared or chosen by, if anything else enters. Raises NoGradient
    where an op has none."""
    graph = region.graph
    wanted = tuple(
        node.op.name
        for node in graph
        if isinstance(node.op, ir.Input)
        and node.type.dtype == "real"
        and node.op.name not in region.tables
    )
    given = tuple(n for n, id in graph.outputs.items() if graph[id].type.dtype == "real")
    found = differentiate(graph, wanted, given, again=(*ir.OPS, *CHUNK_OPS))
    assert not found.saved, [each.name for each in found.saved]
    reached = tuple(name for name in wanted if name not in found.unreached) or wanted
    backward = found.backward.copy()
    alike = _alike(region, backward, reached)
    made = tuple(name for name in reached if name not in alike)
    backward.outputs = {cotangent(name): backward.outputs[cotangent(name)] for name in made}
    if region.again:
        _add_values(region.graph, backward)
    backward = with_gathers(backward)
    in_place = region.again and _in_place(region, backward, alike)
    return Gradient(backward, made, given, alike, in_place)


def _add_values(graph: Graph, backward: Graph) -> None:
    """Let a gradient make the values of its region as well."""
    builder = Sharing(backward)
    ids = {node.op: node.id for node in backward if isinstance(node.op, ir.Input)}
    made = dict[int, int]()
    for node in graph:
        known = ids.get(node.op) if isinstance(node.op, ir.Input) else None
        operands = (made[each] for each in node.operands)
        made[node.id] = builder.add(node.op, *operands) if known is None else known
    backward.outputs |= {name: made[id] for name, id in graph.outputs.items()}


def _in_place(region: TokenRegion, backward: Graph, alike: Mapping[str, str]) -> bool:
    """Whether no program but that which writes a number of the value reads its cotangent there, and
    none of an input is the same."""
    (value,) = region.makes
    axes = {*region.graph[region.graph.outputs[value]].type.names}
    if cotangent(value) in alike.values():
        return False
    read = set[int]()
    for node in backward:
        arrives = isinstance(node.op, ir.Input) and node.op.name == cotangent(value)
        if arrives or not read.isdisjoint(node.operands):
            read.add(node.id)
        fits = isinstance(node.op, ir.Input | ir.Elementwise | ir.Reduce)
        if not axes.issuperset(node.type.names) or (node.id in read and not fits):
            return False
    return True


def _alike(region: TokenRegion, backward: Graph, names: tuple[str, ...]) -> dict[str, str]:
    """The inputs whose cotangent another input has too, or an output, where both run along all
    tokens: by name, the cotangent that it is. At least one of an input is left."""
    first, found = dict[int, str](), dict[str, str]()
    for name in names:
        node = backward[backward.outputs[cotangent(name)]]
        if not is_token_type(node.type, region.stream) or region.edge(name) is not None:
            continue
        if isinstance(node.op, ir.Input) and region.edge(primal(node.op.name) or "") is None:
            found[name] = node.op.name
        elif node.id in first:
            found[name] = first[node.id]
        else:
            first[node.id] = cotangent(name)
    return found if len(found) < len(names) else {}
