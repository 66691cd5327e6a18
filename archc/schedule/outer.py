"""Chunk IR -> chunk IR: sums over sequences and heads are ops of their own.

    walk: d.decay = -sum[batch, V](x)   ->    walk: y = sum[V](x), then: d.decay = -sum[batch](y)
    gate_gradient(d, a, b, g[i, K])     ->    sum[batch](gate_gradient(d, a, b, g[batch, i, K]))

and sums over all tokens are sums over chunks of sums over the rows of one.

    d.bias = sum[batch, t](x)           ->    d.bias = sum[batch, n](sum[i](x in chunks))
    d.lam  = sum[batch, n, i](x)        ->    d.lam  = sum[batch, n](sum[i](x))

A program has one sequence and one head, and cannot sum over others; one that has a chunk hands on
one row of it where it would otherwise store them all.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from archc.dims import Axis
from archc.ir import chunk as ck
from archc.ir import layer as ir
from archc.ir.before_loops import at_every_token
from archc.ir.graph import Graph, Node
from archc.ir.rewrite import in_order
from archc.schedule.axes import labelled


def without_outer_sums(graph: Graph, heads: Collection[str]) -> Graph:
    """The graph in which neither walks nor gradients of gates sum over the batch or heads; itself
    if none does. A walk whose states follow from such sums stays as it is."""
    outer = {"batch", *heads}
    walks = [n for n in graph if isinstance(n.op, ir.Recurrence) and _summed(n.op.body, outer)]
    gates = [n for n in graph if isinstance(n.op, ck.GateGradient) and _lacking(graph, n, outer)]
    if not walks and not gates:
        return graph
    new = graph.copy()
    for walk in walks:
        _move_out(new, new[walk.id], outer)
    for node in gates:
        _sum_after(new, new[node.id], outer)
    return in_order(new)


def with_sums_of_rows(graph: Graph, heads: Collection[str]) -> Graph:
    """The graph in which sums over all tokens of what is made of chunks, and over all rows of all
    chunks, are done for each chunk first; itself if there are none."""
    cuts = [n.op for n in graph if isinstance(n.op, ck.Chunks) and n.op.steps is None]
    sums = [n for n in graph if cuts and _is_over_tokens(graph, n, cuts[0].stream)]
    every = [n for n in graph if cuts and _is_over_rows(n, cuts[0])]
    if not sums and not every:
        return graph
    new = graph.copy()
    for node in sums:
        _sum_rows(new, node, cuts[0], heads)
    for node in every:
        _sum_rows_first(new, node, cuts[0])
    return in_order(new)


def _is_over_tokens(graph: Graph, node: Node, stream: str) -> bool:
    """Whether a value is a sum over the tokens, of what is not given from outside."""
    if not isinstance(node.op, ir.Reduce) or node.op.fn != "sum" or stream not in node.op.axes:
        return False
    return not isinstance(graph[node.operands[0]].op, ir.Input)


def _is_over_rows(node: Node, cut: ck.Chunks) -> bool:
    """Whether a value is a sum over the rows of all chunks."""
    summed = isinstance(node.op, ir.Reduce) and node.op.fn == "sum"
    return summed and {cut.chunk.name, cut.row.name} <= {*node.op.axes}


def _sum_rows_first(graph: Graph, node: Node, cut: ck.Chunks) -> None:
    """Put a sum of the sums of the rows in the place of a sum over chunks and rows."""
    axes = tuple(axis for axis in node.op.axes if axis != cut.row.name)
    _sum_twice(graph, node, node.operands[0], (cut.row.name,), axes)


def _sum_rows(graph: Graph, node: Node, cut: ck.Chunks, heads: Collection[str]) -> None:
    """Put sums of the rows, and the sum of those, in the place of a sum over tokens."""
    (x,) = node.operands
    outer = tuple(name for name in graph[x].type.names if name in heads)
    rows = graph.add(replace(cut, fill=0, outer=outer), x, span=node.span)
    axes = tuple(cut.chunk.name if axis == cut.stream else axis for axis in node.op.axes)
    _sum_twice(graph, node, rows, (cut.row.name,), axes)


def _sum_twice(
    graph: Graph, node: Node, x: int, first: tuple[str, ...], then: tuple[str, ...]
) -> None:  # fmt: skip
    """Put a sum over some axes of a sum over others in the place of one."""
    part = graph.add(ir.Reduce("sum", first), x, span=node.span)
    whole = graph.add(ir.Reduce("sum", then), part, name=node.name, span=node.span)
    graph.substitute(node.id, whole)


def _summed(body: Graph, outer: Collection[str]) -> list[int]:
    """The sums of a body over outer axes."""
    return [node.id for node in body if any(axis in outer for axis in _gone(body, node))]


def _gone(body: Graph, node: Node) -> dict[str, tuple[str, Axis]]:
    """The axes that a node sums over: the label and the axis of each."""
    if isinstance(node.op, ir.Reduce) and node.op.fn == "sum":
        axes = body[node.operands[0]].type
        return {name: (name, axes.axis(name)) for name in node.op.axes}
    if not isinstance(node.op, ir.Contract):
        return {}
    kept = dict(node.op.out)
    return {axis.name: (label, axis) for label, axis in labelled(body, node) if label not in kept}


def _split(body: Graph, id: int, outer: Collection[str]) -> int:
    """A sum in two: over inner axes, and what is returned, over outer ones."""
    node, gone = body[id], _gone(body, body[id])
    axes = tuple(axis for axis in gone if axis in outer)
    inner = node.operands[0]
    if isinstance(node.op, ir.Contract):
        kept = [gone[axis] for axis in axes]
        first = [each for each in kept if each[1].kind == "batch"]
        out = (*first, *node.op.out, *(each for each in kept if each not in first))
        inner = body.add(replace(node.op, out=out), *node.operands, span=node.span)
    elif rest := tuple(axis for axis in gone if axis not in axes):
        inner = body.add(replace(node.op, axes=rest), inner, span=node.span)
    made = body.add(ir.Reduce("sum", axes), inner, name=node.name, span=node.span)
    body.substitute(id, made)
    return made


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
    """Replace a walk by one without the sums, and by those and their readers after it."""
    op: ir.Recurrence = walk.op
    body = op.body.copy()
    sums = {_split(body, id, outer) for id in _summed(body, outer)}
    body.prune(body.ids(ir.Input))
    late = sums.union(*(body.descendants(id) for id in sums))
    if late & {body.outputs[state.name] for state in op.states}:
        return
    after = {name: id for name, id in body.outputs.items() if id in late}
    body.outputs = {name: id for name, id in body.outputs.items() if id not in late}
    late |= _shared(body, {o for id in late for o in body[id].operands})
    read = {o for id in late for o in body[id].operands} - late
    captured = ir.captured(walk)
    parts = {id: f"part.{id}" for id in sorted(read) if _name_of(body, id) not in captured}
    body.outputs |= {name: id for id, name in parts.items()}
    new = graph.add(_without(op, body), *walk.operands, name=walk.name, span=walk.span)
    whole = {id: graph.add(ir.Result(name), new) for id, name in parts.items()}
    whole |= {id: captured[_name_of(body, id)] for id in read - {*parts}}
    for node in [node for node in body if node.id in late]:
        operands = [whole[operand] for operand in node.operands]
        whole[node.id] = at_every_token(graph, replace(op, body=body), node, operands)
    for user in graph.users(walk.id):
        result = graph[user]
        made = whole.get(after.get(result.op.name, -1))
        if made is None:
            made = graph.add(result.op, new, name=result.name, span=result.span)
        graph.substitute(user, made)


def _shared(body: Graph, read: Collection[int]) -> set[int]:
    """Of what is read, what all sequences share, and what that is made of but what is captured:
    each program would store it again."""
    made = {id for id in read if not any(axis.kind == "batch" for axis in body[id].type.axes)}
    every = made.union(*(body.ancestors(id) for id in made))
    return {id for id in every if not isinstance(body[id].op, ir.Input)}


def _name_of(body: Graph, id: int) -> str:
    """The name of an input of a body; "" for any other node."""
    op = body[id].op
    return op.name if isinstance(op, ir.Input) else ""


def _without(op: ir.Recurrence, body: Graph) -> ir.Recurrence:
    """A walk that computes the outputs of a body, and nothing else."""
    return replace(op, body=in_order(body.copy()))
