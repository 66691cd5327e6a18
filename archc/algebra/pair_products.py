"""Products of one value with several weights: whether they are taken apart or as one.

    q = x @ W_q; k = x @ W_k; v = x @ W_v    or    q, k, v = x @ [W_q W_k W_v]

The operations are the same. Together x is read once, but weights that are parameters of their own
have to be copied side by side first, in every call: that is dearer unless there are very many
tokens. The choice is stated here and not made; a kernel can read x once without a copy.
"""

from __future__ import annotations

from collections.abc import Iterator

import sympy

from archc.algebra.decision import VALUE_BYTES, Decision, Option, size
from archc.ir import layer as ir
from archc.ir.graph import Graph, Node


def decisions(layer: ir.Layer) -> Iterator[Decision]:
    """The products of a layer that have one operand in common."""
    graph = layer.graph
    groups: dict[tuple[int, tuple[str, ...]], list[tuple[Node, Node]]] = {}
    for node in graph:
        found = _projection(graph, node)
        if found is not None:
            value, summed, weight = found
            groups.setdefault((value, summed), []).append((node, weight))
    for (value, _), members in groups.items():
        if len(members) > 1:
            yield _decision(graph[value], members)


def _projection(graph: Graph, node: Node) -> tuple[int, tuple[str, ...], Node] | None:
    """The value, the axes that are summed, and the weight of a plain product with a weight."""
    if not isinstance(node.op, ir.Contract) or len(node.operands) != 2:
        return None
    for side, operand in enumerate(node.operands):
        weight, value = graph[operand], graph[node.operands[1 - side]]
        if not isinstance(weight.op, ir.Param) or isinstance(value.op, ir.Param):
            continue
        kept = {label for label, _ in node.op.out}
        labels = zip(value.type.names, node.op.ins[1 - side], strict=True)
        summed = tuple(name for name, label in labels if label not in kept)
        shared = set(node.op.ins[side]) & set(node.op.ins[1 - side]) & kept
        if summed and not shared and "batch" in value.type.names:
            return value.id, summed, weight
    return None


def _decision(value: Node, members: list[tuple[Node, Node]]) -> Decision:
    """Apart, every product reads the value; as one, the weights are copied first."""
    weights = sympy.Add(*(size(weight.type.axes) for _, weight in members))
    made = sympy.Add(*(size(node.type.axes) for node, _ in members))
    x = size(value.type.axes)
    tokens = sympy.Mul(*(axis.size for axis in value.type.axes if axis.kind == "stream"))
    flops = sympy.factor_terms(2 * tokens * weights)
    moved = sympy.factor_terms(VALUE_BYTES * (len(members) * x + weights + made))
    joined = sympy.factor_terms(VALUE_BYTES * (x + 3 * weights + made))
    options = (Option("apart", flops, moved), Option("as one", flops, joined))
    saved = sympy.factor_terms((len(members) - 1) * x)
    names = ", ".join(weight.name or weight.op.name for _, weight in members)
    called = value.name or "one value"
    why = (
        f"`apart`: as one, {sympy.factor_terms(2 * weights)} numbers more would be moved to copy"
        f" the weights side by side, and {saved} fewer to read {called}: fewer bytes only where"
        f" {tokens} > {sympy.factor(2 * weights * tokens / saved)}, and by little"
    )
    where = members[0][0].span.where if members[0][0].span else ""
    return Decision(f"products of {called} with {names}", options, options[0].name, why, where)
