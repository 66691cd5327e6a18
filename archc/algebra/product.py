"""Products as algebra sees them: a tree of contractions, read from its root as one list of factors.

A factor is a node with a label for each of its axes; equal labels run together, and a label that is
not kept is summed. `(A @ B) @ x` is the product of A[i, j], B[j, k] and x[k] that keeps i.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import count

from archc.algebra import cost
from archc.algebra.cost import Cost
from archc.dims import Axis
from archc.ir import layer as ir
from archc.ir.graph import Graph, Node

Labels = tuple[int, ...]

Sized = Callable[[Axis], Axis]
"""An axis as long as it is to be taken for, where its own sample sizes are not what is meant."""


def as_is(axis: Axis) -> Axis:
    """Every axis has its own size."""
    return axis


MOST_STEPS = 30
"""Steps of a product and of sums in it that are read; what lies deeper is a factor."""


@dataclass(frozen=True)
class Factor:
    """A node and the labels of its axes; `inverse`: one over it. A negative node is a hole: the
    value of a plan that is not built yet."""

    node: int
    labels: Labels
    inverse: bool = False


@dataclass(frozen=True)
class Product:
    """Sign and factors; the labels that are not kept by whoever reads it are summed."""

    sign: int
    factors: tuple[Factor, ...]

    @property
    def labels(self) -> frozenset[int]:
        """Every label of a factor."""
        return frozenset(label for factor in self.factors for label in factor.labels)


class Reading:
    """A node read as a product.

    `axes` has an axis (a name and a size) for each label, `out` are the labels of the root. `open`
    are the nodes that are read in their parts, `own` those that only the root needs: what a plan
    does without need not be computed any more.
    """

    def __init__(self, graph: Graph, root: Node, sized: Sized = as_is):
        self.graph = graph
        self.root = root
        self.sized = sized
        self.axes: dict[int, Axis] = {}
        self._labels = count()
        self.out: Labels = tuple(self._label(axis) for axis in root.type.axes)
        self.open: set[int] = {root.id}
        self.own: set[int] = {root.id}
        self._explore()
        self.product = self._product(root.id, self.out)

    def cost(self, id: int) -> Cost:
        """The cost of a node with all below it that only the root needs; nothing if others do."""
        if id not in self.own:
            return cost.FREE
        node = self.graph[id]
        below = (self.cost(operand) for operand in dict.fromkeys(node.operands))
        return cost.total(step_cost(self.graph, node, self.sized), *below)

    def terms(self, factor: Factor) -> list[Product]:
        """A factor that is a sum, as its terms, each with the labels of the axes that it has."""
        node = self.graph[factor.node]
        labels = dict(zip(node.type.names, factor.labels, strict=True))
        terms: list[Product] = []
        for position, operand in enumerate(node.operands):
            own = tuple(labels[name] for name in self.graph[operand].type.names)
            if is_sum(self.graph[operand]) and operand in self.open:
                parts = self.terms(Factor(operand, own))
            else:
                parts = [self._product(operand, own)]
            sign = -1 if position == 1 and node.op == ir.Elementwise("sub") else 1
            terms += [replace(part, sign=part.sign * sign) for part in parts]
        return terms

    def _explore(self) -> None:
        """Find what is open and what is own, from the root down."""
        found, seen = [self.root], {self.root.id}
        for node in found:  # which grows on the way
            for operand in dict.fromkeys(node.operands):
                inner = self.graph[operand]
                alone = is_alone(self.graph, node, operand)
                opened = is_open(self.graph, node, inner, alone)
                if opened:
                    self.open.add(operand)
                if alone and node.id in self.own and (opened or isinstance(inner.op, ir.Delta)):
                    self.own.add(operand)
                # the terms of a sum are read where it is spread, whoever else reads the sum
                if (opened or is_sum(inner)) and operand not in seen and len(found) < MOST_STEPS:
                    seen.add(operand)
                    found.append(inner)

    def _product(self, id: int, labels: Labels) -> Product:
        """A node as a product of everything that is multiplied on the way to it."""
        node = self.graph[id]
        if not is_product(node) or id not in self.open:
            return Product(1, (Factor(id, labels),))
        inner = self._operand_labels(node, labels)
        parts = [self._product(*entry) for entry in zip(node.operands, inner, strict=True)]
        if node.op == ir.Elementwise("div"):
            below = Factor(node.operands[1], inner[1], inverse=True)
            parts[1] = Product(1, (below,))
        sign = -1 if node.op == ir.Elementwise("neg") else 1
        for part in parts:
            sign *= part.sign
        return Product(sign, tuple(factor for part in parts for factor in part.factors))

    def _operand_labels(self, node: Node, labels: Labels) -> list[Labels]:
        """The labels of each operand of a product, from those of its result."""
        types = [self.graph[operand].type for operand in node.operands]
        if isinstance(node.op, ir.Contract):
            names, ins = [label for label, _ in node.op.out], node.op.ins
        else:
            names, ins = node.type.names, [type.names for type in types]
        known = dict(zip(names, labels, strict=True))
        for own, type in zip(ins, types, strict=True):
            for name, axis in zip(own, type.axes, strict=True):
                if name not in known:
                    known[name] = self._label(axis)
                self._meet(known[name], axis)
        return [tuple(known[name] for name in own) for own in ins]

    def _label(self, axis: Axis) -> int:
        """A new label for an axis."""
        label = next(self._labels)
        self.axes[label] = axis
        return label

    def _meet(self, label: int, axis: Axis) -> None:
        """Note that a label runs along an axis as well; inside, `K` is a better name than `K'`."""
        if label not in self.out and len(axis.name) < len(self.axes[label].name):
            self.axes[label] = axis


def is_product(node: Node) -> bool:
    """Whether a node multiplies real numbers: a contraction, a sum over axes, `*`, `/` or `-x`."""
    if node.type.dtype != "real":
        return False
    if isinstance(node.op, ir.Elementwise):
        return node.op.fn in ("mul", "div", "neg")
    return isinstance(node.op, ir.Contract) or (
        isinstance(node.op, ir.Reduce) and node.op.fn == "sum"
    )


def is_sum(node: Node) -> bool:
    """Whether a node adds real numbers elementwise."""
    real = node.type.dtype == "real"
    return real and isinstance(node.op, ir.Elementwise) and node.op.fn in ("add", "sub")


def is_alone(graph: Graph, user: Node, id: int) -> bool:
    """Whether a node is read by one other alone, and once."""
    read_once = graph.users(id) == (user.id,) and user.operands.count(id) == 1
    return read_once and id not in graph.outputs.values()


def is_open(graph: Graph, user: Node, node: Node, alone: bool) -> bool:
    """Whether a reader may take a node apart.

    One that several read stays a factor, so that it is computed once; but an outer product, which
    is larger than what it is made of, may be taken apart by each of its readers. Any other square
    stays, and so does what others are divided by.
    """
    below = user.op == ir.Elementwise("div") and user.operands[1] == node.id
    if below or not (is_product(node) or is_sum(node)):
        return False
    multiplies = isinstance(node.op, ir.Contract) or node.op == ir.Elementwise("mul")
    size = cost.elements(node.type.axes)
    parts = [cost.elements(graph[operand].type.axes) for operand in node.operands]
    outer = multiplies and all(cost.cheaper(part, size) for part in parts)
    square = len(set(node.operands)) < len(node.operands)
    return outer or (alone and not square)


def step_cost(graph: Graph, node: Node, sized: Sized = as_is) -> Cost:
    """The cost of one node whose operands are given."""
    axes = [sized(axis) for axis in node.type.axes]
    if isinstance(node.op, ir.Contract):
        labels: dict[str, Axis] = {}
        for names, operand in zip(node.op.ins, node.operands, strict=True):
            labels.update(zip(names, map(sized, graph[operand].type.axes), strict=True))
        if len(node.operands) == 1 and len(node.op.ins[0]) == len(axes):
            return cost.RENAMING
        return cost.contraction(labels.values(), axes)
    if isinstance(node.op, ir.Reduce):
        return cost.contraction(map(sized, graph[node.operands[0]].type.axes), axes)
    if isinstance(node.op, ir.Delta):
        return cost.elements(axes)
    return cost.elementwise(axes)


def cancel_deltas(graph: Graph, product: Product, kept: Sequence[int]) -> Product:
    """`sum_j delta[i, j] x[j]` -> `x[i]`, for every identity matrix that a sum runs over."""
    factors = product.factors
    for place, factor in enumerate(factors):
        matrix = factor.node in graph and isinstance(graph[factor.node].op, ir.Delta)
        if not matrix or factor.inverse:
            continue
        rest = factors[:place] + factors[place + 1 :]
        for stays, goes in (factor.labels, factor.labels[::-1]):
            merged = tuple(_relabelled(other, goes, stays) for other in rest)
            summed = goes not in kept or goes == stays
            if summed and any(stays in other.labels for other in merged):
                return cancel_deltas(graph, replace(product, factors=merged), kept)
    return product


def _relabelled(factor: Factor, old: int, new: int) -> Factor:
    """The factor with one label in place of another."""
    return replace(factor, labels=tuple(new if label == old else label for label in factor.labels))
