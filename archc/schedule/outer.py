"""Chunk IR -> chunk IR: sums over sequences and heads are ops of their own.

    walk: d.decay = sum[batch, V](x)    ->    walk: y = sum[V](x), then: d.decay = sum[batch](y)
    gate_gradient(d, a, b, g[i, K])     ->    sum[batch](gate_gradient(d, a, b, g[batch, i, K]))

and sums over all tokens are sums over chunks of sums over the rows of one.

    d.bias = sum[batch, t](x)           ->    d.bias = sum[batch, n](sum[i](x in chunks))

A program has one sequence and one head, and cannot sum over others; one that has a chunk hands on
one row of it where it would otherwise store them all.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from archc.dims import Axis
from archc.ir import chunk as ck
from archc.ir import layer as ir
from archc.ir.graph import Graph, Node


def without_outer_sums(graph: Graph, heads: Collection[str]) -> Graph:
    """The graph in which neither walks nor gradients of gates sum over the batch or heads; itself
    if none does."""
    outer = {"batch", *heads}
    walks = [n for n in graph if isinstance(n.op, ir.Fold) and _summed(n, outer)]
    gates = [n for n in graph if isinstance(n.op, ck.GateGradient) and _lacking(graph, n, outer)]
    if not walks and not gates:
        return graph
    new = graph.copy()
    for walk in walks:
        _move_out(new, new[walk.id], outer)
    for node in gates:
        _sum_after(new, new[node.id], outer)
    new.prune([node.id for node in new if isinstance(node.op, ir.Input)])
    return new.renumbered(lambda id: id)


def with_sums_of_rows(graph: Graph, heads: Collection[str]) -> Graph:
    """The graph in which sums over all tokens of what is made of chunks are done for each chunk
    first; itself if there are none."""
    cuts = [n.op for n in graph if isinstance(n.op, ck.Chunks) and n.op.steps is None]
    sums = [n for n in graph if cuts and _is_over_tokens(graph, n, cuts[0].stream)]
    if not sums:
        return graph
    new = graph.copy()
    for node in sums:
        _sum_rows(new, node, cuts[0], heads)
    return new.renumbered(lambda id: id)


def _is_over_tokens(graph: Graph, node: Node, stream: str) -> bool:
    """Whether a value is a sum over the tokens, of what is not given from outside."""
    if not isinstance(node.op, ir.Reduce) or node.op.fn != "sum" or stream not in node.op.axes:
        return False
    return not isinstance(graph[node.operands[0]].op, ir.Input)


def _sum_rows(graph: Graph, node: Node, cut: ck.Chunks, heads: Collection[str]) -> None:
    """Put sums of the rows, and the sum of those, in the place of a sum over tokens."""
    (x,) = node.operands
    outer = tuple(name for name in graph[x].type.names if name in heads)
    rows = graph.add(replace(cut, fill=0, outer=outer), x, span=node.span)
    part = graph.add(ir.Reduce("sum", (cut.row.name,)), rows, span=node.span)
    axes = tuple(cut.chunk.name if axis == cut.stream else axis for axis in node.op.axes)
    whole = graph.add(ir.Reduce("sum", axes), part, name=node.name, span=node.span)
    graph.substitute(node.id, whole)
    graph.prune([n.id for n in graph if isinstance(n.op, ir.Input)])


def _summed(walk: Node, outer: Collection[str]) -> dict[str, tuple[str, ...]]:
    """The results of a walk that are sums, and over which outer axes."""
    op: ir.Fold = walk.op
    states = {state.name for state in op.states}
    found = {}
    for name, id in op.body.outputs.items():
        reduce = op.body[id].op
        if name in states or not isinstance(reduce, ir.Reduce) or reduce.fn != "sum":
            continue
        axes = tuple(axis for axis in reduce.axes if axis in outer)
        if axes:
            found[name] = axes
    return found


def _lacking(graph: Graph, node: Node, outer: Collection[str]) -> tuple[Axis, ...]:
    """The outer axes that the pairs have and the gates lack: their gradient is a sum over them."""
    every = (axis for operand in node.operands for axis in graph[operand].type.axes)
    lacking = [axis for axis in every if axis.name in outer and axis.name not in node.type.names]
    return tuple(dict.fromkeys(lacking))


def _sum_after(graph: Graph, node: Node, outer: Collection[str]) -> None:
    """Gates with the axes that they lack, and the sum over those."""
    axes = _lacking(graph, node, outer)
    gates = graph.add(ck.Expand(axes), node.operands[-1], span=node.span)
    whole = graph.add(node.op, *node.operands[:-1], gates, span=node.span)
    names = tuple(axis.name for axis in axes)
    graph.substitute(node.id, graph.add(ir.Reduce("sum", names), whole, name=node.name))


def _move_out(graph: Graph, walk: Node, outer: Collection[str]) -> None:
    """Put a walk without the sums, and the sums after it, in the place of one."""
    op: ir.Fold = walk.op
    sums, body = _summed(walk, outer), op.body.copy()
    for name, axes in sums.items():
        node = body[body.outputs[name]]
        rest = tuple(axis for axis in node.op.axes if axis not in axes)
        (x,) = node.operands
        inner = body.add(replace(node.op, axes=rest), x, span=node.span) if rest else x
        body.outputs[name] = inner
    body.prune([node.id for node in body if isinstance(node.op, ir.Input)])
    new = graph.add(
        replace(op, body=body.renumbered(lambda id: id)), *walk.operands,
        name=walk.name, span=walk.span,
    )  # fmt: skip
    for user in graph.users(walk.id):
        result = graph[user]
        made = graph.add(result.op, new, name=result.name, span=result.span)
        if result.op.name in sums:
            made = graph.add(ir.Reduce("sum", sums[result.op.name]), made, span=result.span)
        graph.substitute(user, made)
