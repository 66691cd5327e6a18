"""Chunk IR -> chunk IR: products are of rows as they entered, and scale something smaller.

    of a state:     sum[K] (q * s)[i, K] * S[K, V]          ->  s[i] * sum[K] q * S
    exact:          sum[V] (d.o / d)[i, V] * (w * v)[j, V]  ->  w[j] / d[i] * sum[V] d.o * v
    added to S:     sum[i] (k * s)[i, K] * (w * v)[i, V]    ->  sum[i] (k * (s w)) * v
    and of these:   sum[j] P[i, j] * (w * v)[j, V]          ->  sum[j] (P * w) * v

What entered has 16 bits and no rest beyond them: two such are multiplied exactly at once, where
rows that are scaled in float32 are two parts each, and their product is three. And what a walk adds
to a state is then made of scaled rows of one kind, which are written and read: the others are as
the caller has them. Best those that all heads share, as they are scaled for each head.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from archc.ir import layer as ir
from archc.ir.builder import Sharing
from archc.ir.graph import Graph
from archc.ir.rewrite import in_order
from archc.schedule.quotients import exact_products
from archc.schedule.row_scales import MUL, can_scale, enters, factors, moved, scaled


def with_plain_factors(graph: Graph, heads: Collection[str], also: Collection[int] = ()) -> Graph:
    """The graph with such products, and those of `also` so; itself if there are none."""
    plain = _Plain(graph.copy(), heads)
    wanted = exact_products(graph) | _with_states(graph)
    for id in sorted(wanted.union(also)):
        plain.exact(id)
    for walk in graph:
        if isinstance(walk.op, ir.Recurrence) and only_adds(walk.op):
            for place, _ in enumerate(walk.op.captures):
                plain.added(plain.graph[walk.id].operands[place])
    return in_order(plain.graph, plain.places) if plain.places else graph


def _with_states(graph: Graph) -> set[int]:
    """Products with the state of a walk that only adds to one: what a program has of their results
    is smaller than rows are."""
    return {n.id for n in graph if ir.is_product(n.op)
            and any(_is_added(graph, operand) for operand in n.operands)}  # fmt: skip


def _is_added(graph: Graph, id: int) -> bool:
    """Whether a value is a state of such a walk."""
    result = graph[id]
    walk = graph[result.operands[0]].op if isinstance(result.op, ir.Result) else None
    return walk is not None and adds_to_one(walk)


def one_sum(graph: Graph, heads: Collection[str]) -> bool:
    """Whether a graph has one walk, which adds to one state what each head has of its own."""
    walks = [node for node in graph if isinstance(node.op, ir.Recurrence)]
    if len(walks) != 1 or not adds_to_one(walks[0].op):
        return False
    added = (graph[o] for o in walks[0].operands if isinstance(graph[o].op, ir.Contract))
    factors = (graph[o].type.names for node in added for o in node.operands)
    return all({*heads} <= {*names} for names in factors)


def adds_to_one(walk: ir.Recurrence) -> bool:
    """Whether a walk adds to one state, and does nothing else."""
    return len(walk.states) == 1 and only_adds(walk)


def only_adds(walk: ir.Recurrence) -> bool:
    """Whether a walk adds to its states what does not depend on them; no product leads to one."""
    body, states = walk.body, {walk.body.outputs[state.name] for state in walk.states}
    made = states.union(*(body.ancestors(id) for id in states))
    return not any(isinstance(body[id].op, ir.Contract) for id in made)


class _Plain:
    """A graph that is being rewritten; what is new stands in `places`."""

    def __init__(self, graph: Graph, heads: Collection[str]) -> None:
        self.graph, self.heads = graph, heads
        self.places: dict[int, float] = {}

    def exact(self, id: int) -> None:
        """Let a product be one of rows without scales that lack what it sums over."""
        node, first = self.graph[id], self.graph.fresh
        b = Sharing(self.graph, node.span)
        kept = {label for label, _ in node.op.out}
        operands, ins, scales = [*node.operands], [*node.op.ins], list[int]()
        for place, labels in enumerate(node.op.ins):
            rows, scale = factors(b, operands[place], self.heads, divided=True)
            label_of = dict(zip(b.names(operands[place]), labels, strict=True))
            if scale is None or not enters(self.graph, rows):
                continue
            if {label_of[name] for name in b.names(scale)} <= kept:
                scales.append(moved(b, node, place, scale))
                operands[place] = rows
                ins[place] = tuple(label_of[name] for name in b.names(rows))
        if scales:
            op = replace(node.op, ins=tuple(ins))
            made = b.chain("mul", [b.add(op, *operands), *scales])
            self._put(id, made, first)

    def added(self, id: int) -> None:
        """Let a product be one of rows that entered and of rows with one scale, where all products
        of the former let them be without theirs."""
        node = self.graph[id]
        if not ir.is_product(node.op):
            return
        scales = [self._scale(operand) for operand in node.operands]
        shared = [scale is not None and not own for scale, own in scales]
        if None in (scale for scale, _ in scales) and not any(shared):
            return
        for operand in node.operands if shared[0] else node.operands[::-1]:
            if self._without_scale(operand):
                return

    def _scale(self, id: int) -> tuple[int | None, bool]:
        """The scale of a value, and whether the rows are a head's own."""
        b = Sharing(self.graph, self.graph[id].span)
        rows, scale = factors(b, id, self.heads, divided=True)
        return scale, {*self.heads} <= {*b.names(rows)}

    def _without_scale(self, id: int) -> bool:
        """Whether every product of a value was rewritten as one of the rows that it is made of."""
        b, first = Sharing(self.graph, self.graph[id].span), self.graph.fresh
        found = [(each, *factors(b, each, self.heads, divided=True)) for each in self._renamed(id)]
        for each, rows, scale in found:
            if scale is None or not enters(self.graph, rows):
                return False
            names = {*self.graph[scale].type.names}, {*self.graph[rows].type.names}
            users = [self.graph[user] for user in self._read_by(each)]
            if not all(can_scale(self.graph, u, each, names[1], names[0]) for u in users):
                return False
        for each, rows, scale in found:
            assert scale is not None
            for user in self._read_by(each):
                made = scaled(b, self.graph[user], each, rows, scale)
                self._put(user, self._with_one_scale(b, made), first)
        return True

    def _with_one_scale(self, b: Sharing, id: int) -> int:
        """A product of which each factor is made of rows that entered and one scale at most."""
        node = self.graph[id]
        if node.op == MUL:
            return id
        operands, ins = [*node.operands], [*node.op.ins]
        for place, operand in enumerate(node.operands):
            rows, scale = factors(b, operand, self.heads, divided=True)
            if scale is not None and enters(self.graph, rows):
                wider = {*b.names(scale)} <= {*b.names(rows)}
                operands[place] = b.add(MUL, *((rows, scale) if wider else (scale, rows)))
                label_of = dict(zip(b.names(operand), ins[place], strict=True))
                ins[place] = tuple(label_of[name] for name in b.names(operands[place]))
        return b.add(replace(node.op, ins=tuple(ins)), *operands)

    def _put(self, old: int, made: int, first: int) -> None:
        """Let a value stand in the place of another; what is new since `first` is there for it."""
        self.graph.substitute(old, made)
        for id in range(first, self.graph.fresh):
            self.places.setdefault(id, old)

    def _renamed(self, id: int) -> list[int]:
        """A value, and what it is under other names of its axes."""
        users = (user for user in self.graph.users(id) if ir.renames(self.graph[user].op))
        return [id, *(found for user in users for found in self._renamed(user))]

    def _read_by(self, id: int) -> list[int]:
        """What reads a value other than under other names."""
        return [user for user in self.graph.users(id) if not ir.renames(self.graph[user].op)]
