"""Layer IR -> layer IR: a value times its gradient, summed, from the gradients of its factors.

    o = (a @ S + p @ v) / d,    sum[V] o r  ->  (sum[K] a (r @ S.T) + sum[j] p (r @ v.T)) / d

The gradient has the products on the right in any case, for a and for p. So it does not compute o
again, whose products would have to be exact, and whose tiles would stand beside all others. What is
subtracted from these products later on is now made of them, and shows the same roundings.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

from archc.ir import chunk as ck
from archc.ir import layer as ir
from archc.ir.builder import Sharing
from archc.ir.graph import Graph, Node
from archc.schedule.forms import with_forms


def inner_sums(layer: ir.Layer) -> ir.Layer:
    """The layer, such sums of its gradients made of the products that there are."""

    def change(form: ck.ChunkForm) -> ck.ChunkForm | None:
        """The form with another gradient, or None where it has no such sum."""
        if form.backward is None:
            return None
        graph = form.backward
        for node in form.backward:
            graph = _with_fewer_products(graph, node.id) or graph
        return None if graph is form.backward else replace(form, backward=graph)

    return with_forms(layer, change)


def _with_fewer_products(before: Graph, id: int) -> Graph | None:
    """A graph with a sum rewritten, if that leaves fewer products: where what is summed is not
    needed for something else."""
    if id not in before or not isinstance(before[id].op, ir.Reduce):
        return None
    graph = before.copy()
    if not _rewritten(graph, graph[id]):
        return None
    graph.prune([node.id for node in graph if isinstance(node.op, ir.Input)])
    return graph if _products(graph) < _products(before) else None


def _products(graph: Graph) -> int:
    """How many products of matrices a graph has."""
    return sum(ir.is_product(n.op) for n in graph)


@dataclass(frozen=True)
class _Term:
    """A product of values: `over` those that have the dim which is summed, `others` how often each
    other one is in it, below 0 where it is divided by; its sign."""

    over: tuple[int, ...]
    others: Counter[int]
    sign: int = 1

    def times(self, other: _Term) -> _Term:
        """The product of two."""
        others = Counter(self.others)
        others.update(other.others)
        return _Term(tuple(sorted(self.over + other.over)), others, self.sign * other.sign)


def _rewritten(graph: Graph, node: Node) -> bool:
    """Whether a sum is made of products of the graph, and was rewritten so."""
    if node.op.fn != "sum" or len(node.op.axes) != 1:
        return False
    (dim,), (summed,) = node.op.axes, node.operands
    term = _term(graph, summed, dim)
    if len(term.over) != 2:
        return False
    for value, factor in (term.over, term.over[::-1]):
        for gradient in _multiples(graph, factor, dim):
            if not _within(gradient[1], term.others):
                continue
            found = _sum(graph, node, term, value, gradient, dim)
            if found is not None and graph[found].type == node.type:
                graph.substitute(node.id, found)
                return True
    return False


def _within(some: Counter[int], others: Counter[int]) -> bool:
    """Whether a product has factors of another alone: what is left of that is then multiplied and
    divided by nothing new, which could be 0."""
    return all(count * others[id] >= count * count for id, count in some.items())


def _term(graph: Graph, id: int, dim: str) -> _Term:
    """A value as a product."""
    node = graph[id]
    if dim not in node.type.names:
        return _Term((), Counter({id: 1}))
    fn = node.op.fn if isinstance(node.op, ir.Elementwise) else ""
    if fn == "neg":
        inner = _term(graph, node.operands[0], dim)
        return replace(inner, sign=-inner.sign)
    if fn == "mul":
        one, other = (_term(graph, each, dim) for each in node.operands)
        return one.times(other)
    if fn == "div" and dim not in graph[node.operands[1]].type.names:
        below = _Term((), Counter({node.operands[1]: -1}))
        return _term(graph, node.operands[0], dim).times(below)
    if fn == "where" and (kept := _guarded(graph, node, dim)) is not None:
        return kept
    return _Term((id,), Counter())


def _guarded(graph: Graph, node: Node, dim: str) -> _Term | None:
    """The product in a choice that gives 0 where a factor of the product is 0."""
    condition, zero, value = (graph[each] for each in node.operands)
    compared = isinstance(condition.op, ir.Elementwise) and condition.op.fn == "eq"
    if not compared or not _is_zero(zero) or not _is_zero(graph[condition.operands[1]]):
        return None
    found = _term(graph, value.id, dim)
    return found if condition.operands[0] in found.over else None


def _is_zero(node: Node) -> bool:
    return isinstance(node.op, ir.Constant) and node.op.value == 0


def _multiples(graph: Graph, factor: int, dim: str) -> Iterator[tuple[int, Counter[int]]]:
    """The values that are a factor times others without the dim, and those."""
    for id in sorted({factor, *graph.descendants(factor)}):
        found = _term(graph, id, dim)
        if found.over == (factor,) and found.sign == 1:
            yield id, found.others


def _sum(
    graph: Graph, node: Node, term: _Term, value: int, gradient: tuple[int, Counter[int]], dim: str
) -> int | None:
    """The sum of a term over a dim, from the products with a gradient that the graph has."""
    place, addends = _addends(graph, value)
    r, others = gradient
    readers = [r] if place is None else _in_chunks(graph, r)
    for reader in readers:
        pairs = [_pair(graph, addend, reader, dim) for addend in addends]
        found = [pair for pair in pairs if pair is not None]
        if len(found) == len(pairs):
            return _built(graph, node, term, others, place, found)
    return None


def _addends(graph: Graph, value: int) -> tuple[Node | None, list[int]]:
    """The node that takes a value from chunks to tokens, if one does, and what is added there."""
    node = graph[value]
    place = node if isinstance(node.op, ck.Tokens) and node.op.steps is None else None
    waiting, found = [value if place is None else node.operands[0]], list[int]()
    while waiting:
        each = graph[waiting.pop()]
        if isinstance(each.op, ir.Elementwise) and each.op.fn == "add":
            waiting += each.operands
        else:
            found.append(each.id)
    return place, sorted(found)


def _in_chunks(graph: Graph, id: int) -> list[int]:
    """The nodes that cut a value into chunks."""
    users = (graph[user] for user in graph.users(id))
    return [n.id for n in users if isinstance(n.op, ck.Chunks) and n.op.steps is None]


def _pair(graph: Graph, addend: int, reader: int, dim: str) -> tuple[int, int] | None:
    """The factor without the dim of a product of two, and its gradient: the product of the other
    factor and what reads it."""
    node = graph[addend]
    if not _by_name(graph, node):
        return None
    for factor, other in (node.operands, node.operands[::-1]):
        if dim in graph[factor].type.names or dim not in graph[other].type.names:
            continue
        for user in graph.users(other):
            made = graph[user]
            alike = _by_name(graph, made) and {*made.operands} == {other, reader}
            if alike and made.type == graph[factor].type:
                return factor, user
    return None


def _by_name(graph: Graph, node: Node) -> bool:
    """Whether a node is a product of two values, each label of it one name."""
    if not ir.is_product(node.op):
        return False
    names = [*zip(node.op.ins, (graph[o].type.names for o in node.operands), strict=True)]
    known = {label: axis.name for label, axis in node.op.out}
    pairs = [pair for labels, own in names for pair in zip(labels, own, strict=True)]
    return all(known.setdefault(label, name) == name for label, name in pairs)


def _built(
    graph: Graph, node: Node, term: _Term, others: Counter[int], place: Node | None,
    pairs: list[tuple[int, int]],
) -> int:  # fmt: skip
    """The sum, from factors and their gradients."""
    make, sums = Sharing(graph, node.span), []
    rest = node.type.names if place is None else graph[place.operands[0]].type.names
    for factor, gradient in pairs:
        over = tuple(name for name in graph[factor].type.names if name not in rest)
        product = make.fn("mul", factor, gradient)
        sums.append(make.add(ir.Reduce("sum", over), product) if over else product)
    found = make.chain("add", sums)
    found = found if place is None else make.add(place.op, found)
    left = Counter(term.others)
    left.subtract(others)
    for other, count in sorted(left.items()):
        for _ in range(abs(count)):
            found = make.fn("mul" if count > 0 else "div", found, other)
    return make.fn("neg", found) if term.sign < 0 else found
