"""Rules for products: identity matrices, the order of contractions, sums that are cheaper apart.

Each sees a product with everything that is multiplied on the way to it, so that `(A @ B) @ x` is
one product of three from its root. Gains are counted by `cost.py`; no rule knows what a spec says.
"""

from __future__ import annotations

from archc.algebra import cost
from archc.algebra.build import build
from archc.algebra.contraction_order import Join, Plan, Planner, Spread
from archc.algebra.product import (
    Reading,
    Sized,
    as_is,
    cancel_deltas,
    is_product,
    is_sum,
)
from archc.dims import TIME
from archc.ir import layer as ir
from archc.ir.graph import Graph, Node

DEPTHS = (1, 2)
"""How deep sums are spread one within another, the first that is cheaper: one spread after another
finds most of what a deep search finds, with less to search and fewer nodes."""


def drop_delta(graph: Graph, node: Node) -> int | None:
    """`sum_j delta[i, j] * a[i] * x[j]` -> `a[i] * x[i]`: `I @ x` is x, `diag(a) @ x` is a * x."""
    if not is_product(node):
        return None
    reading = Reading(graph, node)
    product = cancel_deltas(graph, reading.product, reading.out)
    if product == reading.product:
        return None
    return _built_if_cheaper(reading, Planner(reading).best(product, reading.out))


def reassociate(graph: Graph, node: Node, sized: Sized = as_is) -> int | None:
    """`(A @ B) @ x` -> `A @ (B @ x)`, and so on for any product, if that is cheaper."""
    if not _is_root(node):
        return None
    reading = Reading(graph, node, sized)
    if not any(isinstance(graph[id].op, ir.Contract | ir.Reduce) for id in reading.open):
        return None
    plan = Planner(reading).best(reading.product, reading.out)
    return _built_if_cheaper(reading, plan)


def distribute(graph: Graph, node: Node, sized: Sized = as_is) -> int | None:
    """`(I - u @ w.T) @ X` -> `X - u @ (w.T @ X)`: a sum times X, if its terms are cheaper apart."""
    if not _is_root(node):
        return None
    reading = Reading(graph, node, sized)
    if not any(is_sum(graph[factor.node]) for factor in reading.product.factors):
        return None
    for deepest in DEPTHS:
        plan = Planner(reading, deepest).best(reading.product, reading.out)
        if plan is not None and _spreads(plan):
            new = _built_if_cheaper(reading, plan)
            if new is not None:
                return new
    return None


def look_up_last(graph: Graph, node: Node) -> int | None:
    """`sum_k q[t, k] * E[p(t, s), k]` -> `(q @ E.T)[t, p(t, s)]`: a product for each row of a
    table, of which pairs of tokens look one up, where each would look up a row to multiply. Only
    values of the reader are taken: in generation there are few."""
    if not isinstance(node.op, ir.Contract) or len(node.operands) != 2:
        return None
    for side, operand in enumerate(node.operands):
        row = graph[operand]
        if isinstance(row.op, ir.Gather) and len(graph.users(operand)) == 1:
            made = _rows_of_products(graph, node, side, row)
            if made is not None:
                return made
    return None


def _rows_of_products(graph: Graph, node: Node, side: int, row: Node) -> int | None:
    """The product of a looked up row and a value that is the same for all but one of the places."""
    (table, index), at = (graph[operand] for operand in row.operands), row.op.axis
    ins, out = node.op.ins, dict(node.op.out)
    labels = dict(zip(row.type.names, ins[side], strict=True))
    pairs = [axis for axis in index.type.axes if axis.kind == "stream"]
    alone = [axis for axis in index.type.axes if labels[axis.name] not in ins[1 - side]]
    if len(pairs) != 2 or len(alone) != 1 or alone[0].name == TIME.name:
        return None
    kept = all(out.get(labels[axis.name]) == axis for axis in index.type.axes)
    apart = {*index.type.names}.isdisjoint(table.type.names)
    if not kept or not apart or {*labels.values()} <= {*out} or at in {*ins[0], *ins[1], *out}:
        return None
    taken = {**labels, at: at}
    rows = [
        (at, table.type.axis(at)) if x == labels[alone[0].name] else (x, a) for x, a in out.items()
    ]
    given = [tuple(taken[name] for name in table.type.names), ins[1 - side]]
    operands = [table.id, node.operands[1 - side]]
    if side:
        given, operands = given[::-1], operands[::-1]
    products = graph.add(ir.Contract(tuple(given), tuple(rows)), *operands)
    return graph.add(row.op, products, index.id)


def rows_apart(graph: Graph, node: Node) -> int | None:
    """`p @ (v[s] + E[p(t, s)])` -> `p @ v[s] + p @ E[p(t, s)]`: a row that each pair of tokens
    looks up is multiplied by itself, where the sum is a vector for each pair."""
    if not isinstance(node.op, ir.Contract) or len(node.operands) != 2:
        return None
    for side, operand in enumerate(node.operands):
        total = graph[operand]
        if is_sum(total) and len(total.operands) == 2 and len(graph.users(operand)) == 1:
            rows = [_is_row_of_pairs(graph[term]) for term in total.operands]
            if any(rows) and all(_has_all(graph, node, side, term) for term in total.operands):
                return _term_by_term(graph, node, side, total)
    return None


def _is_row_of_pairs(node: Node) -> bool:
    """Whether each pair of tokens looks a row up."""
    kinds = [axis.kind for axis in node.type.axes]
    return isinstance(node.op, ir.Gather) and kinds.count("stream") == 2 and "dim" in kinds


def _has_all(graph: Graph, node: Node, side: int, term: int) -> bool:
    """Whether a product of a term has all axes of the product of the sum, and sums over them."""
    total = graph[node.operands[side]]
    labels = dict(zip(total.type.names, node.op.ins[side], strict=True))
    own = {labels[name] for name in graph[term].type.names}
    return {*labels.values()} <= own | {*node.op.ins[1 - side]}


def _term_by_term(graph: Graph, node: Node, side: int, total: Node) -> int:
    """The sum of the products of its terms."""
    labels = dict(zip(total.type.names, node.op.ins[side], strict=True))
    made = []
    for term in total.operands:
        ins, operands = [*node.op.ins], [*node.operands]
        ins[side] = tuple(labels[name] for name in graph[term].type.names)
        operands[side] = term
        made.append(graph.add(ir.Contract(tuple(ins), node.op.out), *operands))
    return graph.add(total.op, *made)


def _built_if_cheaper(reading: Reading, plan: Plan | None) -> int | None:
    """Nodes for a plan that costs less than what is there, and is not that once more."""
    if plan is None:
        return None
    steps = [plan.cost]
    if reading.product.sign < 0:
        steps.append(cost.elementwise(map(reading.sized, reading.root.type.axes)))
    if not cost.cheaper(cost.total(*steps), reading.cost(reading.root.id)):
        return None
    new, root = build(reading, plan), reading.root
    made = reading.graph[new]
    return None if (made.op, made.operands) == (root.op, root.operands) else new


def _is_root(node: Node) -> bool:
    """Whether a node is asked as the root of a product; `/` and `-x` are only looked through."""
    return is_product(node) and node.op not in (ir.Elementwise("div"), ir.Elementwise("neg"))


def _spreads(plan: Plan) -> bool:
    """Whether a plan multiplies the terms of a sum one by one."""
    if isinstance(plan, Join):
        return _spreads(plan.left) or _spreads(plan.right)
    return isinstance(plan, Spread)
