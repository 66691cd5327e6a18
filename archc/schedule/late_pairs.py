"""Chunk IR -> chunk IR: a gradient makes matrices of pairs where it reads them, once more turned.

    P = e * (d.o @ Y.T),  d.q = P @ k,  d.k = P.T @ q
        ->  d.q = P @ k,  T = e * (Y @ d.o.T),  d.k = T @ q

The last kernel of a delta rule reads the states, of which all gradients are made: what queries
learn is made there too, and no matrix of pairs is handed on. A product of two dims more takes it
less than the turning of P, which goes through shared memory. Scales leave the products as well:
rows enter them as they are in memory.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from itertools import pairwise

from archc.ir import chunk as ck
from archc.ir import layer as ir
from archc.ir.builder import Sharing
from archc.ir.graph import Graph, Node
from archc.ir.rewrite import in_order
from archc.schedule.axes import own_dims
from archc.schedule.operands import PAIRED
from archc.schedule.plain_factors import only_adds
from archc.schedule.row_scales import MUL, WHERE, can_scale, enters, factors, scaled

ADD, EXP = ir.Elementwise("add"), ir.Elementwise("exp")


MOST = 16
"""Products that such a kernel makes at most: one with 21 spilled 2 kB of a thread."""


def makes_late(graph: Graph, heads: Collection[str]) -> bool:
    """Whether a graph is the gradient of a delta rule that decays by one number a head at most, a
    row a token, in few products: such kernels have registers left for what queries learn."""
    walks = [node for node in graph if isinstance(node.op, ir.Recurrence)]
    if len(walks) != 1 or only_adds(walks[0].op) or not walks[0].op.reverse:
        return False
    dims = (axis for node in graph for axis in node.type.axes if axis.kind == "dim")
    rows = {axis.size for axis in dims if axis.size.has(ck.CHUNK)}
    wide = (n for n in graph if isinstance(n.op, ck.Sums | ck.Rest))
    states = [own_dims(state.axes, heads) for state in walks[0].op.states]
    return (
        len(_after_walks(graph)) <= MOST
        and rows == {ck.CHUNK} and [len(dims) for dims in states] == [2]
        and not any(isinstance(node.op, PAIRED) for node in graph)
        and all(len(own_dims(node.type.axes, heads)) == 1 for node in wide)
    )  # fmt: skip


def with_late_pairs(graph: Graph, heads: Collection[str]) -> Graph:
    """The graph with such matrices; itself if its last kernel makes none."""
    if not makes_late(graph, heads):
        return graph
    new, places = graph.copy(), dict[int, float]()
    for id in [node.id for node in graph if node.op == EXP]:
        _share(new, new[id], places)
    for id in sorted(of_pairs(graph, heads)):
        _turn(new, new[id], heads, places)
    _join_spans(new)
    return in_order(new, places)


def of_pairs(graph: Graph, heads: Collection[str]) -> set[int]:
    """The products of such a graph that its walk does not need: without scales they are fewer."""
    return _after_walks(graph) if makes_late(graph, heads) else set()


def _after_walks(graph: Graph) -> set[int]:
    """The products that no walk needs."""
    walks = [node.id for node in graph if isinstance(node.op, ir.Recurrence)]
    before = frozenset[int]().union(*(graph.ancestors(walk) for walk in walks))
    return {n.id for n in graph if ir.is_product(n.op) and n.id not in before}


def _share(graph: Graph, decay: Node, places: dict[int, float]) -> None:
    """Let decays between different rows be a part of those between rows, if both are made."""
    spans, first, b = graph[decay.operands[0]], graph.fresh, Sharing(graph, decay.span)
    if not isinstance(spans.op, ck.Differences) or not spans.op.strict:
        return
    whole = b.add(EXP, b.add(replace(spans.op, strict=False), *spans.operands))
    col, row = (decay.type.axis(name) for name in (spans.op.col.name, spans.op.row))
    earlier = b.fn("lt", *(b.add(ir.Position(axis)) for axis in (col, row)))
    made = b.fn("where", earlier, whole, b.number(0))
    graph.substitute(decay.id, made)
    places |= dict.fromkeys(range(first, graph.fresh), decay.id - 0.5)
    places[made] = decay.id


def _turn(graph: Graph, node: Node, heads: Collection[str], places: dict[int, float]) -> None:
    """Let a product that sums over the rows of a matrix of pairs read that matrix turned."""
    place = _turnable(graph, node, heads)
    if place is None:
        return
    b, first = Sharing(graph, node.span), graph.fresh
    made = _without_scale(b, node, place, heads)
    pairs = graph[made.operands[place]]
    turned = _turned(b, pairs, [a.name for a in own_dims(pairs.type.axes, heads)])
    if turned is None:
        return
    names = dict(zip(pairs.type.names, made.op.ins[place], strict=True))
    operands, ins = [*made.operands], [*made.op.ins]
    operands[place], ins[place] = turned, tuple(names[name] for name in b.names(turned))
    found = b.add(replace(made.op, ins=tuple(ins)), *operands)
    graph.substitute(node.id, found)
    places |= dict.fromkeys(range(first, graph.fresh), node.id - 0.5)
    places[found] = node.id


def _turnable(graph: Graph, node: Node, heads: Collection[str]) -> int | None:
    """The operand of a product that is a matrix of pairs whose first rows are summed over."""
    kept = {label for label, _ in node.op.out}
    for place, (operand, labels) in enumerate(zip(node.operands, node.op.ins, strict=True)):
        type = graph[operand].type
        axes = own_dims(type.axes, heads)
        label_of = dict(zip(type.names, labels, strict=True))
        if len(axes) == 2 and all(axis.size == ck.CHUNK for axis in axes):
            first, second = (label_of[axis.name] in kept for axis in axes)
            if second and not first:
                return place
    return None


def _without_scale(b: Sharing, node: Node, place: int, heads: Collection[str]) -> Node:
    """A product of a matrix and rows, as one of rows that entered if the matrix can be scaled."""
    old = node.operands[1 - place]
    rows, scale = factors(b, old, heads)
    if scale is None or not enters(b.graph, rows):
        return node
    names = {*b.names(rows)}, {*b.names(scale)}
    if not can_scale(b.graph, node, old, *names):
        return node
    found = b.graph[scaled(b, node, old, rows, scale)]
    return found if isinstance(found.op, ir.Contract) else node


def _turned(b: Sharing, node: Node, axes: list[str]) -> int | None:
    """A matrix of pairs with its dims the other way around, made of a product that comes out so."""
    op = node.op
    if ir.is_product(op):
        out = [*op.out]
        first, second = (
            next(at for at, (_, axis) in enumerate(out) if axis.name == name) for name in axes
        )
        out[first], out[second] = out[second], out[first]
        return b.add(replace(op, out=tuple(out)), *node.operands)
    if op == WHERE:
        condition, chosen, other = node.operands
        turned = _turned(b, b.graph[chosen], axes)
        return None if turned is None else b.add(op, condition, turned, other)
    if op != MUL:
        return None
    for one, other in (node.operands, node.operands[::-1]):
        turned = _turned(b, b.graph[one], axes) if {*axes} <= {*b.names(one)} else None
        if turned is not None:
            return b.add(MUL, turned, other)
    return None


def _join_spans(graph: Graph) -> None:
    """What gates learn of two matrices of pairs, as of one: that of a sum."""
    found = [node for node in graph if isinstance(node.op, ck.SpansGradient)]
    for one, other in pairwise(found):
        alike = replace(one.op, strict=False) == replace(other.op, strict=False)
        if not alike or not {*_sums(graph, one.id)} & {*_sums(graph, other.id)}:
            continue
        b = Sharing(graph, other.span)
        (last,) = graph.users(one.id)
        (rest,) = (operand for operand in graph[last].operands if operand != one.id)
        both = b.fn("add", *one.operands, *other.operands)
        graph.substitute(last, rest)
        graph.substitute(other.id, b.add(replace(other.op, strict=False), both))


def _sums(graph: Graph, id: int) -> list[int]:
    """The sums that a value is a term of, and of nothing else."""
    users = graph.users(id)
    if len(users) != 1 or graph[users[0]].op != ADD or id in graph.outputs.values():
        return []
    return [users[0], *_sums(graph, users[0])]
