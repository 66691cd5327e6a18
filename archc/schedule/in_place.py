"""Kernel IR -> kernel IR: a result stands where what it is made of stood.

    d.U [n, H, row, V] is read by the last kernel, which writes d.v [t, H, V]
        ->  d.U stands by tokens, d.v in its place

A program reads its rows, and then writes there. Rows beyond the last token are not in memory then,
and are read as 0: this is for values of which nothing looks at such rows, or that are 0 there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from archc.dims import Axis
from archc.ir import chunk as ck
from archc.ir import layer as ir
from archc.ir.graph import Graph, Node, Type
from archc.ir.kernel import NARROW, Kernel, Kernels, made_here
from archc.ir.value_names import is_saved


def in_place(plan: Kernels) -> Kernels:
    """The plan, the results of its last kernel in the place of what it alone reads last."""
    buffers = {buffer.name: buffer for buffer in plan.buffers}
    last = plan.kernels[-1] if plan.kernels else None
    if last is None or last.walk is not None or last.split is not None or last.turn is not None:
        return plan
    taken = set[str]()
    for name, id in last.stores.items():
        for other in _fitting(plan, last, plan.graph[id]):
            if other not in taken and not is_saved(name) and name in plan.graph.outputs:
                taken.add(other)
                tokens = _by_tokens(buffers[other].type, plan.graph[id].type)
                buffers[other] = replace(buffers[other], type=tokens, by_tokens=True)
                buffers[name] = replace(buffers[name], over=other)
                break
    return replace(plan, buffers=tuple(buffers.values())) if taken else plan


def _fitting(plan: Kernels, kernel: Kernel, result: Node) -> Iterator[str]:
    """The buffers that a result of a kernel may take the place of."""
    graph, made = plan.graph, {buffer.name: buffer for buffer in plan.buffers}
    read = {o for node in made_here(kernel) for o in node.operands if o in kernel.loads}
    host = {o for id in plan.fallback for o in graph[id].operands}
    for id in sorted(read - {*kernel.stores.values()} - host - {*graph.outputs.values()}):
        buffer = made.get(kernel.loads[id])
        if buffer is None or buffer.width != NARROW:
            continue
        row = _row_of(graph[id].type, result.type)
        walk = isinstance(graph[id].op, ir.Result)
        if row is not None and (_is_unseen if walk else _is_zero)(graph, id, row.name):
            yield buffer.name


def _row_of(rows: Type, tokens: Type) -> Axis | None:
    """The axis of rows of a value that has axes as long as those of another one, by rows of chunks
    in place of by tokens."""
    found = [axis for axis in rows.axes if axis.size == ck.CHUNK]
    rest = [axis for axis in rows.axes if axis not in found and axis.kind != "stream"]
    streams = [axis for axis in tokens.axes if axis.kind == "stream"]
    others = [axis for axis in tokens.axes if axis not in streams]
    alike = [(a.size, a.kind) for a in rest] == [(a.size, a.kind) for a in others]
    return found[0] if len(found) == len(streams) == 1 and alike else None


def _by_tokens(rows: Type, tokens: Type) -> Type:
    """The type of rows of chunks that stand where the tokens of another value do."""
    dims = (axis for axis in rows.axes if axis.kind != "stream" and axis.size != ck.CHUNK)
    named = [each for each in dims if each.kind == "dim"]
    return Type(tuple(a if a.kind != "dim" else named.pop(0) for a in tokens.axes))


def _is_unseen(graph: Graph, id: int, row: str) -> bool:
    """Whether no output depends on the rows of a value that lie beyond the last token."""
    if id in graph.outputs.values():
        return False
    return all(_passes(graph, id, graph[user], row) for user in graph.users(id))


def _passes(graph: Graph, id: int, user: Node, row: str) -> bool:
    """Whether no output sees such rows of a value through one of its users."""
    op = user.op
    if isinstance(op, ck.Tokens):
        return op.row == row and op.steps is None
    if isinstance(op, ir.Elementwise | ck.Expand):
        return _is_zero(graph, user.id, row) or _is_unseen(graph, user.id, row)
    if isinstance(op, ir.Reduce):
        return row not in op.axes and _is_unseen(graph, user.id, row)
    if not isinstance(op, ir.Contract):
        return False
    places = [place for place, operand in enumerate(user.operands) if operand == id]
    return all(_contracts(graph, user, place, row) for place in places)


def _contracts(graph: Graph, user: Node, place: int, row: str) -> bool:
    """The same of a product: what it sums over these rows is 0 there in its other factor."""
    op, names = user.op, graph[user.operands[place]].type.names
    label, kept = op.ins[place][names.index(row)], {label: axis.name for label, axis in op.out}
    if label in kept:
        name = kept[label]
        return _is_zero(graph, user.id, name) or _is_unseen(graph, user.id, name)
    others = (at for at in range(len(op.ins)) if at != place)
    return any(_zero_along(graph, user, at, label) for at in others)


def _zero_along(graph: Graph, node: Node, place: int, label: str) -> bool:
    """Whether a factor of a product is 0 in the rows beyond the last token of that label."""
    if label not in node.op.ins[place]:
        return False
    operand = node.operands[place]
    return _is_zero(graph, operand, graph[operand].type.names[node.op.ins[place].index(label)])


def _is_zero(graph: Graph, id: int, row: str) -> bool:
    """Whether a value is 0 in the rows beyond the last token."""
    node = graph[id]
    if isinstance(node.op, ir.Constant):
        return node.op.value == 0
    if row not in node.type.names:
        return False
    if isinstance(node.op, ck.Conjugate):
        return _is_zero(graph, node.operands[0], row)
    if isinstance(node.op, ck.Chunks):
        return not node.op.fill and node.op.row.name == row
    if isinstance(node.op, ir.Contract):
        (label,) = (label for label, axis in node.op.out if axis.name == row)
        return any(_zero_along(graph, node, at, label) for at in range(len(node.op.ins)))
    if not isinstance(node.op, ir.Elementwise):
        return False
    zero = [_is_zero(graph, operand, row) for operand in node.operands]
    fn = node.op.fn
    if fn in ("mul", "div", "neg"):
        return any(zero) if fn == "mul" else zero[0]
    return all(zero[fn == "where" :]) if fn in ("add", "sub", "where") else False
