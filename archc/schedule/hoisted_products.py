"""Products of a loop over tokens that need no state: made before the loop, for all tokens at once.

A kernel that walks tokens does one at a time, and should hold no weights that it need not hold.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from archc.dims import Axis
from archc.ir import layer as ir
from archc.ir.graph import Graph, Node


def products_before(graph: Graph) -> Graph:
    """The graph, the products of two captures of its Recurrences made outside, where a sum over a
    dim makes them costly."""
    made = graph.copy()
    for node in tuple(graph):
        if isinstance(node.op, ir.Recurrence):
            _take_out(made, made[node.id])
    made.prune()
    return made


def _take_out(graph: Graph, node: Node) -> None:
    """One Recurrence with such products as captures, and with what is only added to them."""
    op, count = node.op, len(node.op.captures)
    outside = dict(zip(op.captures, node.operands, strict=False))
    body, made = op.body.copy(), dict[int, str]()
    inputs = {n.id: n.op.name for n in op.body if isinstance(n.op, ir.Input)}
    captured = {id: name for id, name in inputs.items() if name in outside}
    for inner in op.body:
        known = {**captured, **made}
        if not all(operand in known for operand in inner.operands):
            continue
        if not (_is_costly(inner) or _is_added(op.body, inner, made)):
            continue
        whole = [outside[known[operand]] for operand in inner.operands]
        name = made[inner.id] = f"product.{inner.id}"
        outside[name] = at_every_token(graph, op, inner, whole)
        body.substitute(inner.id, body.add(ir.Input(name, inner.type), name=inner.name))
    if not made:
        return
    body.prune()
    read = {n.op.name for n in body if isinstance(n.op, ir.Input)}
    captures = tuple(name for name in outside if name in read)
    given = [*(outside[name] for name in captures), *node.operands[count:]]
    graph.substitute(node.id, graph.add(replace(op, captures=captures, body=body), *given))


def _is_costly(node: Node) -> bool:
    """Whether a node is a product that is summed."""
    if not isinstance(node.op, ir.Contract) or len(node.operands) != 2:
        return False
    return bool({label for labels in node.op.ins for label in labels} - {*dict(node.op.out)})


def _is_added(body: Graph, node: Node, made: Collection[int]) -> bool:
    """Whether a node adds to a product what nothing else reads: one value enters, not two."""
    if not isinstance(node.op, ir.Elementwise) or node.op.fn != "add":
        return False
    others = [operand for operand in node.operands if operand not in made]
    return len(others) < 2 and all(body.users(o) == (node.id,) for o in node.operands)


def at_every_token(graph: Graph, op: ir.Recurrence, inner: Node, whole: Sequence[int]) -> int:
    """A value of the body at every token, of `whole` operands."""
    body, label = op.body, f"{op.stream.name}*"
    if not isinstance(inner.op, ir.Contract):
        return graph.add(inner.op, *whole, name=inner.name)
    ins, along = [], False
    for labels, operand, given in zip(inner.op.ins, inner.operands, whole, strict=True):
        names = dict(zip(body[operand].type.names, labels, strict=True))
        axes = graph[given].type.names
        along = along or op.stream.name in axes
        ins.append(tuple(names.get(axis, label) for axis in axes))
    out: list[tuple[str, Axis]] = list(inner.op.out)
    if along:
        first = sum(axis.kind == "batch" for _, axis in out)
        out.insert(first, (label, op.stream))
    return graph.add(ir.Contract(tuple(ins), tuple(out)), *whole, name=inner.name)
