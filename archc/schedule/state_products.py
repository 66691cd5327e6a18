"""Chunk IR -> chunk IR: a walk that adds to one state multiplies it by another one as it goes.

    along the chunks  D' = g D + a,  then  t[n] = sum[K, V] S[n, K, V] * D[n, K, V]
        ->  along the chunks  D' = g D + a, y[V] = sum[K] S * D,  then  t[n] = sum[V] y[n, V]

Such sums are gradients of decays. The walk has D at hand, and registers to spare; a kernel after it
that reads two matrices of a state holds little else.
"""

from __future__ import annotations

from dataclasses import replace

from archc.ir import layer as ir
from archc.ir.builder import Sharing
from archc.ir.free_names import numbered
from archc.ir.graph import Graph, Node, Type
from archc.schedule.plain_factors import adds_to_one


def with_state_products(graph: Graph) -> Graph:
    """The graph whose walks make such sums; itself if there are none."""
    found = [node.id for node in graph if _state_in(graph, node) is not None]
    if not found:
        return graph
    new = graph.copy()
    for id in found:
        _move(new, new[id])
    new.prune([node.id for node in new if isinstance(node.op, ir.Input)])
    return new.renumbered(lambda id: id)


def _state_in(graph: Graph, node: Node) -> tuple[Node, int] | None:
    """The state of a walk that is multiplied by one that enters, and that one, if a value is the
    sum of their product over all their dims."""
    if not isinstance(node.op, ir.Contract) or len(node.operands) != 2:
        return None
    names = [graph[operand].type.names for operand in node.operands]
    if names[0] != names[1] or node.op.ins[0] != node.op.ins[1]:
        return None
    for operand, other in (node.operands, node.operands[::-1]):
        result = graph[operand]
        if isinstance(result.op, ir.Result) and isinstance(graph[other].op, ir.Input):
            walk = graph[result.operands[0]]
            dims = {axis.name for state in walk.op.states for axis in state.axes[-2:]}
            summed = {*names[0]} - {*node.type.names}
            if adds_to_one(walk.op) and len(summed) == 2 and summed == dims:
                return result, other
    return None


def _move(graph: Graph, node: Node) -> None:
    """Let the walk make what programs with a part of the last dim can, and sum that."""
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
    kept = tuple((axis.name, axis) for axis in axes if axis.name != axes[-2].name)
    state = body.outputs[result.op.name]
    made = body.add(ir.Contract((body[state].type.names, labels), kept), state, entering)
    output = numbered("product", {*body.outputs}, ".")
    body.outputs[output] = made
    count = len(op.captures)
    captured = (*walk.operands[:count], other, *walk.operands[count:])
    new = replace(op, captures=(*op.captures, name), body=body.renumbered(lambda id: id))
    b = Sharing(graph, walk.span)
    moved = graph.add(new, *captured, name=walk.name, span=walk.span)
    sums = b.add(ir.Reduce("sum", (axes[-1].name,)), b.add(ir.Result(output), moved))
    graph.substitute(node.id, sums)
    for user in graph.users(walk.id):
        each = graph[user]
        graph.substitute(user, graph.add(each.op, moved, name=each.name, span=each.span))
