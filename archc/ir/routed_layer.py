"""Layer IR -> layer IR: what a route does with a memory, as a layer of the tokens of one place.

    gate[t, N], k[t, N, K], q[t, K] -> S[N, K, V], y[t, N, V]
    gate[t],    k[t, K],    q[t, K] -> S[K, V],    y[t, V]        here

A memory with a state for each place, which stays as it is where a token has not chosen the place,
is one memory for each place that sees its own tokens alone. So no place is left in this layer, nor
a choice, and it has the form of any other memory. What enters and leaves the memory and is made of
nothing else is computed in it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace

import sympy

from archc.dims import BATCH, TIME, Axis
from archc.ir import layer as ir
from archc.ir.builder import Builder
from archc.ir.free_names import numbered
from archc.ir.graph import Graph, Node, Type
from archc.ir.routes import Route
from archc.ir.typing import layer_graph

HEAD = (BATCH, TIME)
"""The axes that a token of a place has in the layer."""


@dataclass(frozen=True)
class RoutedLayer:
    """The layer of a route's memory: `members` of the route are computed in it, its inputs stand
    for `reads` and its outputs for `makes`, in order."""

    layer: ir.Layer
    members: frozenset[int]
    reads: tuple[int, ...]
    makes: tuple[int, ...]


def routed_layer(layer: ir.Layer, route: Route, every: bool) -> RoutedLayer:
    """The memory of a route by itself, with what is around it; `every`: each token that is given
    has chosen its place, so that none is asked."""
    graph = layer.graph
    inside = _around(graph, route)
    outer = _Copying(graph, route, every)
    makes = [
        id for id in sorted(inside)
        if id == route.exit or not {*graph.users(id)} <= inside
        if not isinstance(graph[id].op, ir.Recurrence)
    ]  # fmt: skip
    for id in sorted(inside):
        outer.copy(graph[id])
    for id in makes:
        name = numbered(graph[id].name or "made", {*outer.taken, *outer.new.outputs})
        outer.new.outputs[name] = outer.copies[id]
    doc = f"The tokens of {layer.name} that have chosen a place, each place a sequence."
    made = replace(
        layer, name=f"{layer.name}Routed", kind="layer", doc=doc, graph=outer.new, requirements=()
    )
    return RoutedLayer(made, frozenset(inside), tuple(outer.reads), tuple(makes))


def _around(graph: Graph, route: Route) -> set[int]:
    """The memory, its results, and those members that are read by these alone, or made of these and
    of nothing that comes after them."""
    assert route.memory is not None
    inside = {route.memory, *graph.users(route.memory)}
    free = {*route.members} - {*route.products}
    size = 0
    while size != len(inside):
        size = len(inside)
        after = {user for id in inside for user in graph.descendants(id)} - inside
        for id in sorted(free - inside):
            node, own = graph[id], {*graph[id].operands} & route.members
            ready = bool(own & inside) and not (own - inside) & after
            users = {*graph.users(id)}
            if (ready or (users and users <= inside)) and _of_rows(graph, route, node):
                inside.add(id)
    return inside


def _of_rows(graph: Graph, route: Route, node: Node) -> bool:
    """Whether a member reads values of tokens and numbers alone: others stay where they are."""
    rows = {*route.rows, route.axis}
    return all(
        o in route.members or rows & {*graph[o].type.names} or _is_number(graph, graph[o])
        for o in node.operands
    )


def _is_number(graph: Graph, node: Node) -> bool:
    """Whether a value is made of constants alone."""
    every = [node, *(graph[id] for id in graph.ancestors(node.id))]
    leaves = [each for each in every if not each.operands]
    return all(isinstance(each.op, ir.Constant) for each in leaves)


class _Copying:
    """The graph of one place under construction."""

    def __init__(self, graph: Graph, route: Route, every: bool):
        self.old, self.route, self.every = graph, route, every
        self.new: Graph = layer_graph()
        self.copies: dict[int, int] = {}
        self.reads: list[int] = []
        self.taken: set[str] = set()
        self.ours = {*route.rows, route.axis}

    def copy(self, node: Node) -> None:
        """A node of the layer, without places."""
        if isinstance(node.op, ir.Recurrence):
            made = self._memory(node)
        elif isinstance(node.op, ir.Reduce) and {*node.op.axes} <= {self.route.axis}:
            self.copies[node.id] = self._entered(node.operands[0])
            return
        else:
            operands = [self._entered(operand) for operand in node.operands]
            made = self.new.add(self._op(node), *operands, name=node.name, span=node.span)
        self.copies[node.id] = made

    def _entered(self, id: int) -> int:
        """The copy of a value, or the input that stands for it."""
        if id in self.copies:
            return self.copies[id]
        node = self.old[id]
        if _is_number(self.old, node):
            operands = [self._entered(operand) for operand in node.operands]
            self.copies[id] = self.new.add(node.op, *operands, name=node.name)
            return self.copies[id]
        kept = tuple(axis for axis in node.type.axes if axis.name not in self.ours)
        kind = "int" if node.type.dtype == "bool" else node.type.dtype
        name = numbered(node.name or "value", self.taken)
        self.taken.add(name)
        made = self.new.add(ir.Input(name, Type((*HEAD, *kept), kind)), name=name, span=node.span)
        if node.type.dtype == "bool":
            zero = self.new.add(ir.Constant(sympy.Integer(0)))
            made = Builder(self.new).fn("lt", zero, made)
        self.reads.append(id)
        self.copies[id] = made
        return made

    def _op(self, node: Node) -> object:
        op = node.op
        if isinstance(op, ir.Reduce):
            return ir.Reduce(op.fn, tuple(name for name in op.axes if name != self.route.axis))
        if isinstance(op, ir.Contract):
            return without_axes(self.old, node, self.ours, HEAD)
        return op

    def _memory(self, node: Node) -> int:
        """The recurrence: one state, and no choice where each place sees who has chosen it."""
        op, axis = node.op, self.route.axis
        given = dict(zip(op.captures, node.operands, strict=False))
        gates = [name for name, id in given.items() if id == self.route.top and self.every]
        body = without_place(op.body, axis, gates)
        inputs = {each.op.name for each in body if isinstance(each.op, ir.Input)}
        captures = tuple(name for name in op.captures if name in inputs)
        states = tuple(
            replace(each, axes=tuple(a for a in each.axes if a.name != axis)) for each in op.states
        )
        laws = tuple(
            replace(law, merge=without_place(law.merge, axis), apply=without_place(law.apply, axis))
            for law in op.laws
        )
        heads = tuple(name for name in op.heads if name != axis)
        changed = replace(
            op, captures=captures, states=states, body=body, heads=heads, laws=laws, chunked=None
        )
        zeros = [self.new.add(ir.Constant(sympy.Integer(0))) for _ in states]
        entering = [self._entered(given[name]) for name in captures]
        return self.new.add(changed, *entering, *zeros, name=node.name, span=node.span)


def without_place(graph: Graph, axis: str, gates: Collection[str] = ()) -> Graph:
    """A body without the axis of places; `gates`: inputs that are true."""
    new: Graph = layer_graph()
    copies: dict[int, int] = {}
    true = {n.id for n in graph if isinstance(n.op, ir.Input) and n.op.name in gates}
    for node in graph:
        op = node.op
        if op == ir.Elementwise("where") and node.operands[0] in true:
            copies[node.id] = copies[node.operands[1]]
            continue
        if isinstance(op, ir.Input):
            kept = tuple(each for each in node.type.axes if each.name != axis)
            op = replace(op, type=Type(kept, node.type.dtype))
        elif isinstance(op, ir.Contract):
            op = without_axes(graph, node, {axis})
        operands = [copies[operand] for operand in node.operands]
        copies[node.id] = new.add(op, *operands, name=node.name, span=node.span)
    new.outputs = {name: copies[id] for name, id in graph.outputs.items()}
    new.prune([n.id for n in new if isinstance(n.op, ir.Input) and n.op.name not in gates])
    return new


def without_axes(
    graph: Graph, node: Node, away: Collection[str], head: tuple[Axis, ...] = ()
) -> ir.Contract:
    """A product without some axes, of operands that have `head` in their place."""
    gone = {*_labels(graph, node, away)}
    front = tuple(axis.name for axis in head)
    ins = []
    for labels in node.op.ins:
        rest = tuple(label for label in labels if label not in gone)
        ins.append((*front, *rest) if len(rest) < len(labels) else rest)
    out = [(label, axis) for label, axis in node.op.out if label not in gone]
    return ir.Contract(tuple(ins), (*((axis.name, axis) for axis in head), *out))


def _labels(graph: Graph, node: Node, names: Collection[str]) -> Iterator[str]:
    """The labels of a product that some axes have."""
    for labels, operand in zip(node.op.ins, node.operands, strict=True):
        for label, name in zip(labels, graph[operand].type.names, strict=True):
            if name in names:
                yield label
