"""Chunk IR -> chunk IR: a walk that only adds to states multiplies one by another as it goes.

    along the chunks  D' = g D + a,  then  t[n] = sum[K, V] S[n, K, V] * D[n, K, V]
        ->  along the chunks  D' = g D + a, y[V] = sum[K] S * D,  then  t[n] = sum[V] y[n, V]

Such sums are gradients of decays. The walk has D at hand, and registers to spare; a kernel after it
that reads two matrices of a state holds little else. What is left to sum is a dim that all states
of the walk have, of which its programs have a part each: K where a vector of K is carried too.
"""

from __future__ import annotations

from collections.abc import Sequence

from archc.ir import layer as ir
from archc.ir.builder import Sharing
from archc.ir.free_names import numbered
from archc.ir.graph import Graph, Node, Type
from archc.ir.rewrite import in_order, replace_walk
from archc.schedule.plain_factors import only_adds


def with_state_products(graph: Graph) -> Graph:
    """The graph whose walks make such sums; itself if there are none."""
    found = [node.id for node in graph if _state_in(graph, node) is not None]
    if not found:
        return graph
    new, places = graph.copy(), dict[int, float]()
    for id in found:
        _move(new, new[id], places)
    return in_order(new, places)


def _state_in(graph: Graph, node: Node) -> tuple[Node, int] | None:
    """The state of a walk that is multiplied by one that enters, and that one, if a value is the
    sum of their product over all their dims."""
    if not ir.is_product(node.op):
        return None
    names = [graph[operand].type.names for operand in node.operands]
    if names[0] != names[1] or node.op.ins[0] != node.op.ins[1]:
        return None
    for operand, other in (node.operands, node.operands[::-1]):
        result = graph[operand]
        if isinstance(result.op, ir.Result) and isinstance(graph[other].op, ir.Input):
            walk = graph[result.operands[0]]
            summed = {*names[0]} - {*node.type.names}
            if only_adds(walk.op) and summed == {*names[0][-2:]} and _left(walk.op, names[0]):
                return result, other
    return None


def _left(walk: ir.Recurrence, names: Sequence[str]) -> str | None:
    """The last dim of a matrix of a state that all states of its walk have, if one is."""
    shared = set[str].intersection(*({axis.name for axis in s.axes} for s in walk.states))
    return next((name for name in names[-2:] if name in shared), None)


def _move(graph: Graph, node: Node, places: dict[int, float]) -> None:
    """Let the walk make what programs with a part of a dim can, and sum that; what is new stands in
    `places`."""
    found = _state_in(graph, node)
    if found is None:  # the walk has such a sum already
        return
    result, other = found
    walk, type = graph[result.operands[0]], graph[other].type
    op: ir.Recurrence = walk.op
    body = op.body.copy()
    name = numbered(graph[other].op.name, {*op.captures, *(s.name for s in op.states)}, ".")
    axes = tuple(axis for axis in type.axes if axis.name != op.stream.name)
    entering = body.add(ir.Input(name, Type(axes)))
    labels = tuple(axis.name for axis in axes)
    left = _left(op, type.names)
    kept = tuple((axis.name, axis) for axis in axes if axis.name == left or axis not in axes[-2:])
    state = body.outputs[result.op.name]
    made = body.add(ir.Contract((body[state].type.names, labels), kept), state, entering)
    output = numbered("product", {*body.outputs}, ".")
    body.outputs[output] = made
    captured = ir.captured(walk)
    moved = replace_walk(graph, walk, body, captured | {name: other})
    b = Sharing(graph, walk.span)
    parts = b.add(ir.Result(output), moved[walk.id])
    sums = b.add(ir.Reduce("sum", (kept[-1][0],)), parts)
    graph.substitute(node.id, sums)
    standing = {made: old for old, made in moved.items()} | {parts: node.id, sums: node.id}
    places |= {id: places.get(old, old) for id, old in standing.items()}
