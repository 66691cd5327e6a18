"""Bodies of an attention that is handed a latent where it was handed what is made of it.

As the body stands, the chain that leads from the latent comes first: every token read is expanded
once. For decoding, each product with an expanded value is put in the order that is cheapest where
one token reads many: what is fixed meets the reader's side, and no token read is expanded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial

import sympy

from archc.algebra.absorb_chain import Chain, has_params
from archc.algebra.decision import defaults_of
from archc.algebra.product import Sized
from archc.algebra.rules import distribute, reassociate
from archc.dims import Axis
from archc.ir import layer as ir
from archc.ir.decode import operations_more
from archc.ir.free_names import numbered
from archc.ir.graph import Graph, Node, Type
from archc.ir.rewrite import Rule, rewrite_graph
from archc.ir.typing import layer_graph

READ = sympy.Integer(1 << 16)
"""How many tokens one reader reads, for the order of products that decoding takes."""


@dataclass
class Handed:
    """The entry of a body in its new order: captures with their roles, and the operand of each."""

    captures: list[tuple[str, str]] = field(default_factory=list)
    operands: list[int] = field(default_factory=list)

    def name(self, hint: str, role: str, operand: int) -> str:
        """The name under which a value enters, the same if it does already."""
        for (name, known), other in zip(self.captures, self.operands, strict=True):
            if (known, other) == (role, operand):
                return name
        name = numbered(hint, {name for name, _ in self.captures})
        self.captures.append((name, role))
        self.operands.append(operand)
        return name

    def reorder(self, op: ir.Attend, chosen: Mapping[str, Chain]) -> None:
        """Latents in the place of what they stand for, weights last."""
        places: dict[object, int] = {}
        for i, capture in enumerate(op.captures):
            chain = chosen.get(capture[0])
            places.setdefault(capture if chain is None else chain.latent, i)

        def place(entry: tuple[tuple[str, str], int]) -> int:
            capture, operand = entry
            latent = places.get(operand) if capture[1] == "read" else None
            return min(p for p in (places.get(capture), latent, len(places)) if p is not None)

        entries = sorted(zip(self.captures, self.operands, strict=True), key=place)
        self.captures = [capture for capture, _ in entries]
        self.operands = [operand for _, operand in entries]


def with_latents(
    graph: Graph, node: Node, chosen: Mapping[str, Chain], args: Sequence[ir.Arg]
) -> tuple[ir.Attend, Handed]:
    """The attention with latents in place of the captures `chosen`, in both orders."""
    op, handed = node.op, Handed()
    for (name, role), operand in zip(op.captures, node.operands, strict=True):
        if name not in chosen:
            handed.captures.append((name, role))
            handed.operands.append(operand)
    bodies = [_Body(graph, op, handed, chosen, each).built() for each in (False, True)]
    handed.reorder(op, chosen)
    rules: tuple[Rule, ...] = (
        gather_weights,
        partial(distribute, sized=few_readers(op, args)),
        partial(reassociate, sized=few_readers(op, args)),
    )
    decode = rewrite_graph(bodies[1], rules)
    both = decode if operations_more(bodies[0], decode) != 0 else None
    new = replace(op, captures=tuple(handed.captures), body=bodies[0], decode=both)
    return new, handed


def few_readers(op: ir.Attend, args: Sequence[ir.Arg] = ()) -> Sized:
    """One token that reads many; other sizes are their defaults, where they have any."""
    defaults = defaults_of(args)

    @cache
    def sized(axis: Axis) -> Axis:
        if axis.name == op.reader.name:
            return Axis(axis.name, sympy.Integer(1))
        if axis.name == op.read.name:
            return Axis(axis.name, READ)
        return Axis(axis.name, axis.size.subs(defaults)) if axis.kind == "dim" else axis

    return sized


class _Body:
    """A copy of a body in which captures are made of latents: once each, or for each reader."""

    def __init__(
        self, outer: Graph, op: ir.Attend, handed: Handed, chosen: Mapping[str, Chain], apart: bool
    ):
        self.outer, self.op, self.handed, self.chosen = outer, op, handed, chosen
        self.apart = apart
        self.new = layer_graph()
        self.inputs: dict[str, int] = {}
        self.copies: dict[int, int] = {}

    def built(self) -> Graph:
        """The body."""
        ids: dict[int, int] = {}
        chains = {
            n.id: self.chosen[n.op.name]
            for n in self.op.body
            if isinstance(n.op, ir.Input) and n.op.name in self.chosen
        }
        for node in self.op.body:
            if isinstance(node.op, ir.Input) and node.id not in chains:
                ids[node.id] = self.new.add(node.op, name=node.name, span=node.span)
                self.inputs[node.op.name] = ids[node.id]
        for node in self.op.body:
            if node.id in chains and not self.apart:
                ids[node.id] = self._expanded(chains[node.id])
            elif node.id not in chains and node.id not in ids:
                operands = [
                    ids[o] if o in ids else self._expanded(chains[o]) for o in node.operands
                ]
                ids[node.id] = self.new.add(node.op, *operands, name=node.name, span=node.span)
        for name, id in self.op.body.outputs.items():
            self.new.outputs[name] = ids[id] if id in ids else self._expanded(chains[id])
        self.new.prune()
        return self.new

    def _expanded(self, chain: Chain) -> int:
        """The last value of a chain, made of its latent for each token read."""
        known = {chain.latent: self._entered(chain.latent, "read")}
        for step in chain.steps:
            node = self.outer[step]
            operands = [known[o] if o in known else self._fixed(o) for o in node.operands]
            known[step] = self.new.add(
                self._along(node.op), *operands, name=node.name, span=node.span
            )
        return known[chain.steps[-1]]

    def _entered(self, id: int, role: str) -> int:
        """The input for a value of the layer."""
        node = self.outer[id]
        hint = node.name or getattr(node.op, "name", None) or "u"
        name = self.handed.name(hint, role, id)
        if name not in self.inputs:
            axes = tuple(self._axis(axis) for axis in node.type.axes)
            op = ir.Input(name, Type(axes, node.type.dtype))
            self.inputs[name] = self.new.add(op, name=name, span=node.span)
        return self.inputs[name]

    def _fixed(self, id: int) -> int:
        """A value that is the same for all tokens: handed in, or copied if it is numbers alone."""
        if has_params(self.outer, id):
            return self._entered(id, "reader")
        if id not in self.copies:
            node = self.outer[id]
            operands = [self._fixed(operand) for operand in node.operands]
            self.copies[id] = self.new.add(node.op, *operands, name=node.name, span=node.span)
        return self.copies[id]

    def _along(self, op: ir.Op) -> ir.Op:
        """An op of a chain, along the tokens read."""
        if not isinstance(op, ir.Contract):
            return op
        known = {label: axis.name for label, axis in op.out}
        taken = {label for labels in op.ins for label in labels}

        def named(label: str) -> str:
            """The label of the tokens read, if no other has that name."""
            along = known.get(label) == self.op.source and self.op.read.name not in taken
            return self.op.read.name if along else label

        ins = tuple(tuple(named(label) for label in labels) for labels in op.ins)
        return ir.Contract(ins, tuple((named(label), self._axis(axis)) for label, axis in op.out))

    def _axis(self, axis: Axis) -> Axis:
        return self.op.read if axis.name == self.op.source else axis


def gather_weights(graph: Graph, node: Node) -> int | None:
    """`take(c @ W)` -> `c @ take(W)`, along an axis that only W has: heads that share a key."""
    if not isinstance(node.op, ir.Gather):
        return None
    value, index = (graph[id] for id in node.operands)
    if len(value.operands) != 2 or not isinstance(value.op, ir.Contract):
        return None
    if len(graph.users(value.id)) > 1 or any(axis.kind != "dim" for axis in index.type.axes):
        return None
    label = next(label for label, axis in value.op.out if axis.name == node.op.axis)
    sides = [place for place, labels in enumerate(value.op.ins) if label in labels]
    if len(sides) != 1 or value.op.ins[sides[0]].count(label) > 1:
        return None
    (side,) = sides
    weight = graph[value.operands[side]]
    shared = set(index.type.names) & (set(value.type.names) | set(weight.type.names))
    if len(index.type.axes) != 1 or shared - {node.op.axis} or "batch" in weight.type.names:
        return None
    return _gathered_first(graph, node, value, side, label)


def _gathered_first(graph: Graph, node: Node, value: Node, side: int, label: str) -> int:
    """The contraction of a weight that is read by index."""
    weight, index = value.operands[side], node.operands[1]
    (into,) = graph[index].type.axes
    place = value.op.ins[side].index(label)
    axis = graph[weight].type.axes[place].name
    taken = graph.add(ir.Gather(axis), weight, index)
    ins = list(value.op.ins)
    labels = dict(zip(graph[weight].type.names, ins[side], strict=True)) | {into.name: label}
    ins[side] = tuple(labels[name] for name in graph[taken].type.names)
    named = {a.name: known for known, a in value.op.out if known != label} | {into.name: label}
    out = tuple((named[a.name], a) for a in node.type.axes)
    operands = list(value.operands)
    operands[side] = taken
    return graph.add(ir.Contract(tuple(ins), out), *operands)
