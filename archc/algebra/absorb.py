"""Layer IR -> layer IR: an attention keeps a latent in place of the keys and values made from it.

    k = c @ W_UK; v = c @ W_UV; attend: o = softmax(q[t] @ k[s]) @ v[s]
    -> attend, keeping c:       o = softmax(q[t] @ (c[s] @ W_UK)) @ (c[s] @ W_UV)
       or, for a few readers:   o = (softmax((q[t] @ W_UK) @ c[s]) @ c[s]) @ W_UV

A product is associative, also across the border of an attention: the second form is the first with
its products in the order that is cheapest where one token reads many. The latent is kept where the
numbers to read for a token of output become fewer by a larger factor than its operations become
more; both factors are taken from expressions in the layer's sizes, at its defaults.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import sympy

from archc.algebra.absorb_body import READ, with_latents
from archc.algebra.absorb_chain import Chain, chains
from archc.algebra.decision import VALUE_BYTES, Decision, Option, at, points, size
from archc.ir import layer as ir
from archc.ir.count import operations, operations_of
from archc.ir.decode import decode_pays
from archc.ir.graph import Graph, Node
from archc.ir.rewrite import rewrite
from archc.ir.text import called_layers

Chosen = Mapping[str, Chain]
"""The chain that leads to a capture, for captures whose latent is kept."""


def absorb(layer: ir.Layer) -> ir.Layer:
    """The layer with latents kept wherever that pays, in its attentions and in called layers."""
    args = {
        id(node.op): each.args
        for each in called_layers(layer)
        for node in each.graph
        if isinstance(node.op, ir.Attend)
    }

    def keep_latents(graph: Graph, node: Node) -> int | None:
        """An attention that reads keys and values -> one that reads what they are made of."""
        found = absorbed(graph, node, args[id(node.op)]) if id(node.op) in args else None
        return None if found is None else graph.add(found.op, *found.operands)

    return rewrite(layer, [keep_latents])


def decisions(layer: ir.Layer) -> Iterator[Decision]:
    """The decisions of `absorb` about each attention of a layer that could keep a latent."""
    for node in layer.graph:
        if isinstance(node.op, ir.Attend):
            found = absorbed(layer.graph, node, layer.args)
            if found is not None:
                yield found.decision()


@dataclass(frozen=True)
class Form:
    """An attention with some latents kept: its op and operands, and what was outside before."""

    graph: Graph
    node: Node
    op: ir.Attend
    operands: tuple[int, ...]
    outside: tuple[int, ...]

    @property
    def reads(self) -> list[int]:
        """The values that are kept for later tokens, each once."""
        pairs = zip(self.op.captures, self.operands, strict=True)
        own = {
            id: None
            for (_, role), id in pairs
            if role != "reader" and self.op.source in self.graph[id].type.names
        }
        return list(own)

    def cache(self) -> sympy.Expr:
        """Numbers kept for each token that no other attention keeps as well."""
        others = _kept_by_others(self.graph, self.node)
        own = [self.graph[id].type.axes for id in self.reads if id not in others]
        return sympy.Add(*(size(a for a in axes if a.name != self.op.source) for axes in own))

    def option(self, name: str, body: Graph) -> Option:
        """The cost of one order of the products: of the body, and of values made outside it."""
        made = [self.graph[id] for id in self.outside]
        flops = operations(body, {}) + sympy.Add(*(_operations(self.graph, n) for n in made))
        moved = _moved(self.op, body) + 2 * sympy.Add(*(size(n.type.axes) for n in made))
        short = sympy.factor_terms(sympy.expand(flops)), sympy.factor_terms(VALUE_BYTES * moved)
        return Option(name, *short, self.cache())

    def options(self) -> list[Option]:
        """Each form that the attention has."""
        names = ", ".join(self.graph[id].name or "a latent" for id in self.reads)
        if self.op.decode is None:
            return [self.option(f"keep {names}", self.op.body)]
        return [
            self.option(f"keep {names}; expand", self.op.body),
            self.option(f"keep {names}; absorb", self.op.decode),
        ]

    def decision(self) -> Decision:
        """The decision that this form is."""
        before = _form(self.graph, self.node, outside=self.outside)
        options = (*before.options(), *self.options())
        taken = "where one token reads many, bytes fall by a larger factor than flops rise"
        if self.op.decode is not None:
            left, right = decode_pays(self.op)
            taken += f"; `absorb` takes fewer flops where {left} < {right}, `expand` elsewhere"
        chosen = " | ".join(option.name for option in options[1:])
        where = self.node.span.where if self.node.span else ""
        return Decision("what an attention keeps", options, chosen, taken, where)


def absorbed(graph: Graph, node: Node, args: Sequence[ir.Arg]) -> Form | None:
    """The form of an attention that keeps the latents which pay; None if none does."""
    op = node.op
    if not op.causal or op.source != op.reader.name or op.decode is not None:
        return None  # a sequence of its own, or of blocks, is not kept token by token
    found = _candidates(graph, node)
    chosen: Chosen = {}
    best = _form(graph, node)
    for latent in dict.fromkeys(chain.latent for every in found.values() for chain in every):
        through = {
            name: chain
            for name, every in found.items()
            for chain in every
            if chain.latent == latent
        }
        form = _form(graph, node, {**chosen, **through}, args)
        if _pays(form, best, args):
            best, chosen = form, {**chosen, **through}
    return best if chosen else None


def _candidates(graph: Graph, node: Node) -> dict[str, list[Chain]]:
    """The chains that lead to each value that is read; nothing else may be kept for the reader."""
    found = {}
    for (name, role), operand in zip(node.op.captures, node.operands, strict=True):
        if role == "read" and node.op.source in graph[operand].type.names:
            found[name] = list(chains(graph, operand))
    return found


def _form(
    graph: Graph,
    node: Node,
    chosen: Chosen = MappingProxyType({}),
    args: Sequence[ir.Arg] = (),
    outside: tuple[int, ...] = (),
) -> Form:
    """An attention with the chosen latents. `outside`: steps that it takes outside, if no latent is
    kept, to be counted in a comparison."""
    if not chosen:
        return Form(graph, node, node.op, node.operands, outside)
    op, handed = with_latents(graph, node, chosen, args)
    steps = tuple(dict.fromkeys(step for chain in chosen.values() for step in chain.steps))
    return Form(graph, node, op, tuple(handed.operands), steps)


def _pays(new: Form, old: Form, args: Sequence[ir.Arg]) -> bool:
    """Whether decoding with `new` reads fewer numbers by a larger factor than it takes operations
    more, and keeps less, at every sample of the sizes."""
    few: dict[Any, Any] = {new.op.reader.size: sympy.Integer(1), new.op.read.size: READ}
    caches = [new.cache(), old.cache()]
    samples = points(args, caches)
    if not all(at(caches[0], point) < at(caches[1], point) for point in samples):
        return False
    one, other = (
        (option.flops.subs(few), option.bytes.subs(few))
        for option in (_decoding(new), _decoding(old))
    )
    samples = points(args, (*one, *other))
    return all(
        at(one[0], point) * at(one[1], point) < at(other[0], point) * at(other[1], point)
        for point in samples
    )


def _decoding(form: Form) -> Option:
    """The cost of a form where one token reads many."""
    return form.options()[-1]


def _kept_by_others(graph: Graph, node: Node) -> set[int]:
    """The values that the other attentions of a layer keep."""
    kept: set[int] = set()
    for other in graph:
        if isinstance(other.op, ir.Attend) and other.id != node.id:
            pairs = zip(other.op.captures, other.operands, strict=True)
            kept |= {id for (_, role), id in pairs if role != "reader"}
    return kept


def _operations(graph: Graph, node: Node) -> sympy.Expr:
    """Operations of one node outside."""
    return operations_of(node, [graph[o].type for o in node.operands], {})


def _moved(op: ir.Attend, body: Graph) -> sympy.Expr:
    """Numbers that a body reads and writes: inputs and outputs once, values of a single token twice
    (written, then read). Values of pairs of tokens stay in registers."""
    moved: list[sympy.Expr] = []
    outputs = set(body.outputs.values())
    for node in body:
        pair = {op.reader.name, op.read.name} <= set(node.type.names)
        if isinstance(node.op, ir.Input) or node.id in outputs:
            moved.append(size(node.type.axes))
        elif isinstance(node.op, ir.Contract) and not pair:
            moved.append(2 * size(node.type.axes))
    return sympy.Add(*moved)
