"""Chunk IR -> chunk IR: sums over sequences and heads are ops of their own.

    walk: d.decay = sum[batch, V](x)    ->    walk: y = sum[V](x), then: d.decay = sum[batch](y)
    gate_gradient(d, a, b, g[i, K])     ->    sum[batch](gate_gradient(d, a, b, g[batch, i, K]))

A program has one sequence and one head, and cannot sum over others.
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
