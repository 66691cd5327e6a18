"""Products and sums as algebra sees them: a tree of contractions, read as one product of factors.

A factor is a node with a label for each of its axes; equal labels run together, and a label that is
not kept is summed. `(A @ B) @ x` is the product of A[i, j], B[j, k] and x[k] that keeps i.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count

from archc.algebra import cost
from archc.dims import Axis
from archc.ir import layer as ir
from archc.ir.graph import Graph, Node

Labels = tuple[int, ...]


@dataclass(frozen=True)
class Factor:
    """A node and the labels of its axes; `inverse`: one over it."""

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


class Labelling:
    """Makes labels, and knows an axis (a name and a size) for each. `out` are the labels of the
    root of what is read; the others take the plainest name that one of their axes has."""

    def __init__(self, root: Sequence[Axis]):
        self.axes: dict[int, Axis] = {}
        self._fresh = count()
        self.out: Labels = tuple(self.label(axis) for axis in root)

    def label(self, axis: Axis) -> int:
        """A new label for an axis."""
        label = next(self._fresh)
        self.axes[label] = axis
        return label

    def meet(self, label: int, axis: Axis) -> None:
        """Note that a label runs along an axis as well: rather `K` than `K'`."""
        if label not in self.out and len(axis.name) < len(self.axes[label].name):
            self.axes[label] = axis

    def of(self, labels: Sequence[int]) -> tuple[Axis, ...]:
        """An axis for each label."""
        return tuple(self.axes[label] for label in labels)


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


def read_product(graph: Graph, id: int, labels: Labels, labelling: Labelling) -> Product:
    """The node as a product of everything that is multiplied on the way to it."""
    node, op = graph[id], graph[id].op
    if not is_product(node):
        return Product(1, (Factor(id, labels),))
    inner = _operand_labels(graph, node, labels, labelling)
    parts = [
        _read_operand(graph, node, operand, names, labelling)
        for operand, names in zip(node.operands, inner, strict=True)
    ]
    if op == ir.Elementwise("div"):
        (below,) = parts[1].factors
        parts[1] = Product(1, (replace(below, inverse=True),))
    sign = -1 if op == ir.Elementwise("neg") else 1
    for part in parts:
        sign *= part.sign
    return Product(sign, tuple(factor for part in parts for factor in part.factors))


def _operand_labels(graph: Graph, node: Node, labels: Labels, labelling: Labelling) -> list[Labels]:
    """The labels of each operand of a product, from those of its result."""
    types = [graph[operand].type for operand in node.operands]
    if isinstance(node.op, ir.Contract):
        names, ins = [label for label, _ in node.op.out], node.op.ins
    else:
        names, ins = node.type.names, [type.names for type in types]
    known = dict(zip(names, labels, strict=True))
    for own, type in zip(ins, types, strict=True):
        for name, axis in zip(own, type.axes, strict=True):
            if name in known:
                labelling.meet(known[name], axis)
            else:
                known[name] = labelling.label(axis)
    return [tuple(known[name] for name in own) for own in ins]


def _read_operand(
    graph: Graph, user: Node, id: int, labels: Labels, labelling: Labelling
) -> Product:
    """An operand as a product, if taking it apart cannot make its work be done twice."""
    if is_open(graph, user, id):
        return read_product(graph, id, labels, labelling)
    return Product(1, (Factor(id, labels),))


def read_sum(graph: Graph, id: int, labels: Labels, labelling: Labelling) -> list[Product]:
    """The node as a sum of products, each with the labels of the axes that it has."""
    node = graph[id]
    known = dict(zip(node.type.names, labels, strict=True))
    terms: list[Product] = []
    for position, operand in enumerate(node.operands):
        inner = tuple(known[name] for name in graph[operand].type.names)
        if is_sum(graph[operand]) and is_open(graph, node, operand):
            parts = read_sum(graph, operand, inner, labelling)
        else:
            parts = [_read_operand(graph, node, operand, inner, labelling)]
        sign = -1 if position == 1 and node.op == ir.Elementwise("sub") else 1
        terms += [replace(part, sign=part.sign * sign) for part in parts]
    return terms


def is_open(graph: Graph, user: Node, id: int) -> bool:
    """Whether a node may be taken apart by the only one that reads it.

    One that several read stays a factor, so that it is computed once; but an outer product, which
    is larger than what it is made of, may be taken apart by each of its readers. A square stays.
    """
    node = graph[id]
    below = user.op == ir.Elementwise("div") and user.operands[1] == id
    square = len(set(node.operands)) < len(node.operands)
    if below or square or not (is_product(node) or is_sum(node)):
        return False
    alone = graph.users(id) == (user.id,) and user.operands.count(id) == 1
    if alone and id not in graph.outputs.values():
        return True
    multiplies = isinstance(node.op, ir.Contract) or node.op == ir.Elementwise("mul")
    size = cost.elements(node.type.axes)
    parts = [cost.elements(graph[operand].type.axes) for operand in node.operands]
    return multiplies and all(cost.cheaper(part, size) for part in parts)


def tree(graph: Graph, id: int) -> Iterator[Node]:
    """A product or sum and the nodes that only it needs, as far as it can be taken apart."""
    node = graph[id]
    yield node
    for operand in dict.fromkeys(node.operands):
        alone = graph.users(operand) == (id,) and operand not in graph.outputs.values()
        if not alone:
            continue
        if is_open(graph, node, operand):
            yield from tree(graph, operand)
        elif isinstance(graph[operand].op, ir.Delta):
            yield graph[operand]


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
