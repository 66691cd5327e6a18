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
