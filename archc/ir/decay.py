"""The parameters of a layer that weight decay is for, and those that it is not: maps of tokens and
tables may decay in training, parameters that only scale, shift or gate should not."""

from __future__ import annotations

from collections.abc import Iterator

from archc.ir import layer as ir
from archc.ir.graph import Graph, Node


def maps_and_tables(layer: ir.Layer) -> set[int]:
    """The parameters of two dims or more that something is multiplied by and summed, or that are
    read at an index, in the layer or in the memories inside it."""
    found = set[int]()
    for id, param in layer.params:
        if len(param.axes) >= 2 and any(_maps(*use) for use in _uses(layer.graph, id)):
            found.add(id)
    return found


def _uses(graph: Graph, id: int) -> Iterator[tuple[Node, int]]:
    """The uses of a value, each with the value's place among the operands: in another order of
    dims, and inside recurrences and attends, too."""
    for user in graph.users(id):
        node = graph[user]
        for place in [i for i, operand in enumerate(node.operands) if operand == id]:
            op = node.op
            yield node, place
            if isinstance(op, ir.Contract) and len(op.ins) == 1:
                yield from _uses(graph, user)
            elif isinstance(op, ir.Recurrence | ir.Attend):
                inside = _entering(op, place)
                yield from () if inside is None else _uses(op.body, inside)


def _entering(op: ir.Recurrence | ir.Attend, place: int) -> int | None:
    """The input of the body that an operand is."""
    captures = [each if isinstance(each, str) else each[0] for each in op.captures]
    name = captures[place] if place < len(captures) else None
    inputs = (n.id for n in op.body if isinstance(n.op, ir.Input) and n.op.name == name)
    return next(inputs, None)


def _maps(node: Node, place: int) -> bool:
    """Whether a use is a product that sums over a dim of it, or reads it at an index."""
    op = node.op
    if isinstance(op, ir.Gather):
        return place == 0
    if not ir.is_product(op):
        return False
    kept = {label for label, _ in op.out}
    return any(label not in kept for label in op.ins[place])
