"""The gradient of a region in two stages, where one would make a convolution again for each tap.

The gradient of a short convolution u = conv(x, c) reads that of u at the next tokens. Where that is
made of u, a single program would make u again at every one of them, tap by tap, each time. So the
first stage writes the gradient of u to memory, and the second one reads it.
"""

from __future__ import annotations

from archc.ir import chunk as ck
from archc.ir import layer as ir
from archc.ir.graph import Graph
from archc.ir.token_region import is_token_type

STAGED = "moved."
"""What the names of values between the stages begin with."""


def stages(graph: Graph, stream: str) -> tuple[Graph, ...]:
    """The gradient graph itself, or two: outputs of the first that are called `moved.0`, ... are
    inputs of the second."""
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
