"""Rules for products: identity matrices, the order of contractions, sums that are cheaper apart.

Each sees a product with everything that is multiplied on the way to it, so that `(A @ B) @ x` is
one product of three from its root. Gains are counted by `cost.py`; no rule knows what a spec says.
"""

from __future__ import annotations

from archc.algebra import cost
from archc.algebra.build import build
from archc.algebra.plan import Join, Plan, Planner, Spread, present_cost
from archc.algebra.product import (
    Labelling,
    cancel_deltas,
    is_product,
    is_sum,
    read_product,
    tree,
)
from archc.ir import layer as ir
from archc.ir.graph import Graph, Node


class _View:
    """A node read as a product."""

    def __init__(self, graph: Graph, node: Node):
        self.graph = graph
        self.node = node
        self.labelling = Labelling(node.type.axes)
        self.out = self.labelling.out
        self.product = read_product(graph, node.id, self.out, self.labelling)

    def best(self, spreads: bool) -> Plan | None:
        """The cheapest plan, if one is found."""
        planner = Planner(self.graph, self.labelling, self.node, spreads)
        return planner.best(self.product, self.out)

    def improves(self, plan: Plan) -> bool:
        """Whether a plan is cheaper than what is there."""
        steps = [plan.cost]
        if self.product.sign < 0:
            steps.append(cost.elementwise(self.node.type.axes))
        return cost.cheaper(cost.total(*steps), present_cost(self.graph, self.node.id))

    def build(self, plan: Plan) -> int:
        """Nodes for a plan."""
        out = dict(zip(self.out, self.node.type.axes, strict=True))
        return build(self.graph, plan, self.product.sign, out, self.labelling)


def drop_delta(graph: Graph, node: Node) -> int | None:
    """`sum_j delta[i, j] * a[i] * x[j]` -> `a[i] * x[i]`: `I @ x` is x, `diag(a) @ x` is a * x."""
    if not is_product(node):
        return None
    view = _View(graph, node)
    factors = view.product.factors
    if len(cancel_deltas(graph, view.product, view.out).factors) == len(factors):
        return None
    plan = view.best(spreads=False)
    return None if plan is None or not view.improves(plan) else view.build(plan)


def reassociate(graph: Graph, node: Node) -> int | None:
    """`(A @ B) @ x` -> `A @ (B @ x)`, and so on for any product, if that is cheaper."""
    if not _contracts(graph, node):
        return None
    view = _View(graph, node)
    plan = view.best(spreads=False)
    return None if plan is None or not view.improves(plan) else view.build(plan)


def distribute(graph: Graph, node: Node) -> int | None:
    """`(I - u @ w.T) @ X` -> `X - u @ (w.T @ X)`: a sum times X, if its terms are cheaper apart."""
    if not _contracts(graph, node):
        return None
    view = _View(graph, node)
    if not any(is_sum(graph[factor.node]) for factor in view.product.factors):
        return None
    plan = view.best(spreads=True)
    if plan is None or not _spreads(plan) or not view.improves(plan):
        return None
    return view.build(plan)


def _contracts(graph: Graph, node: Node) -> bool:
    """Whether a node is a product with a contraction or a sum over axes in it.

    `/` and `-x` are looked through from above; what they are applied to is a product of its own.
    """
    if not is_product(node) or node.op in (ir.Elementwise("div"), ir.Elementwise("neg")):
        return False
    return any(isinstance(part.op, ir.Contract | ir.Reduce) for part in tree(graph, node.id))


def _spreads(plan: Plan) -> bool:
    """Whether a plan multiplies the terms of a sum one by one."""
    if isinstance(plan, Join):
        return _spreads(plan.left) or _spreads(plan.right)
    return isinstance(plan, Spread)
