"""The gradient of a token region: a graph from its inputs and the cotangents of its outputs.

Nothing of the forward is saved but what enters: every op of a region takes less than reading its
value from memory would. The products with parameters before it and behind it keep their operands in
any case.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from archc.ir import chunk as ck
from archc.ir import layer as ir
from archc.ir.chunk import CHUNK_OPS
from archc.ir.graph import Graph
from archc.ir.token_region import Gradient, TokenRegion, is_token_type
from archc.regions.inverse import with_gathers

Differentiate = Callable[..., Any]
"""`archc.autodiff.reverse.gradient`, or what hands on to it."""


def gradient_of(region: TokenRegion, differentiate: Differentiate) -> Gradient:
    """The gradients of the real inputs of a region, but of its tables, which are of positions
    alone. Raises NoGradient where an op has none."""
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
    return Gradient(stages(with_gathers(found.backward), region.stream), wanted, given)


STAGED = "moved."
"""The prefix of the names of values between the stages."""


def stages(graph: Graph, stream: str) -> tuple[Graph, ...]:
    """The gradient graph itself, or two: outputs of the first that are called `moved.0`, ... are
    inputs of the second.

    The gradient of a short convolution u = conv(x, c) reads that of u at the next tokens. Where
    that is made of u, one program would make u again at each of them, tap by tap: so a first stage
    writes the gradient of u to memory, and a second one reads it.
    """
    later = {n.id for n in graph if isinstance(n.op, ck.Unwindow)}
    later |= {id for each in later for id in graph.descendants(each)}
    between = _between(graph, later, stream)
    if not between:
        return (graph,)
    names = {id: f"{STAGED}{place}" for place, id in enumerate(between)}
    first, second = graph.copy(), graph.copy()
    first.outputs = {n: id for n, id in graph.outputs.items() if id not in later}
    first.outputs |= {name: id for id, name in names.items()}
    first.prune()
    for id, name in names.items():
        second.substitute(id, second.add(ir.Input(name, graph[id].type)))
    second.outputs = {n: id for n, id in second.outputs.items() if n not in first.outputs}
    second.prune()
    return first, second


def _between(graph: Graph, later: set[int], stream: str) -> list[int]:
    """The values that a transposed convolution reads at other tokens and that are made of another
    convolution."""
    found = []
    waiting = [n.operands[0] for n in graph if isinstance(n.op, ck.Unwindow)]
    while waiting:
        node = graph[waiting.pop(0)]
        if node.id in later or node.id in found:
            continue
        runs = any(isinstance(graph[each].op, ir.Window) for each in graph.ancestors(node.id))
        if isinstance(node.op, ir.Contract | ck.Expand) and _has_taps(graph, node.id):
            waiting += node.operands
        elif runs and is_token_type(node.type, stream):
            found.append(node.id)
    return found


def _has_taps(graph: Graph, id: int) -> bool:
    """Whether a value has an axis that a transposed convolution sums over."""
    widths = {n.op.width for n in graph if isinstance(n.op, ck.Unwindow)}
    return bool(widths & {*graph[id].type.names})
