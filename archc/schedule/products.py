"""Products of a loop over tokens that need no state: made before the loop, for all tokens at once.

A kernel that walks tokens does one at a time, and should hold no weights that it need not hold.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from archc.dims import Axis
from archc.ir import layer as ir
from archc.ir.graph import Graph, Node


def products_before(graph: Graph) -> Graph:
    """The graph, the products of two captures of its Folds made outside, where a sum over a dim
    makes them dear."""
    made = graph.copy()
    for node in tuple(graph):
        if isinstance(node.op, ir.Fold):
            _take_out(made, made[node.id])
    made.prune()
    return made


def _take_out(graph: Graph, node: Node) -> None:
    """One Fold with such products as captures."""
    op, body = node.op, node.op.body.copy()
    count = len(op.captures)
    outside = dict(zip(op.captures, node.operands, strict=False))
    for inner in op.body:
        names = [getattr(op.body[operand].op, "name", None) for operand in inner.operands]
        inputs = all(isinstance(op.body[operand].op, ir.Input) for operand in inner.operands)
        if _is_dear(inner) and inputs and all(name in outside for name in names):
            outside[f"product.{inner.id}"] = _outside(graph, op, inner, outside)
            entering = body.add(ir.Input(f"product.{inner.id}", inner.type), name=inner.name)
            body.substitute(inner.id, entering)
    if len(outside) == count:
        return
    body.prune()
    read = {n.op.name for n in body if isinstance(n.op, ir.Input)}
    captures = tuple(name for name in outside if name in read)
    given = [*(outside[name] for name in captures), *node.operands[count:]]
    graph.substitute(node.id, graph.add(replace(op, captures=captures, body=body), *given))


def _is_dear(node: Node) -> bool:
    """Whether a node is a product that is summed."""
    if not isinstance(node.op, ir.Contract) or len(node.operands) != 2:
        return False
    return bool({label for labels in node.op.ins for label in labels} - {*dict(node.op.out)})


def _outside(graph: Graph, op: ir.Fold, inner: Node, outside: Mapping[str, int]) -> int:
    """A product of captures at every token."""
    body, label = op.body, f"{op.stream.name}*"
    operands = [outside[body[operand].op.name] for operand in inner.operands]
    ins, along = [], False
    for labels, operand, whole in zip(inner.op.ins, inner.operands, operands, strict=True):
        names = dict(zip(body[operand].type.names, labels, strict=True))
        axes = graph[whole].type.names
        along = along or op.stream.name in axes
        ins.append(tuple(names.get(axis, label) for axis in axes))
    out: list[tuple[str, Axis]] = list(inner.op.out)
    if along:
        first = sum(axis.kind == "batch" for _, axis in out)
        out.insert(first, (label, op.stream))
    return graph.add(ir.Contract(tuple(ins), tuple(out)), *operands, name=inner.name)
