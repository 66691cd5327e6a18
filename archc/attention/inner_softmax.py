"""An attend's body -> one in which a softmax that is a part of another weight is an exponential.

    f(softmax(score)) @ v         ->  f(exp(score - logsumexp(score))) @ v
    where(c, softmax(score), 0)   ->  softmax(score) * where(c, 1, 0)

The log of the total is of the reader alone, and a sum over the tokens read by itself. Kernels alone
see it.
"""

from __future__ import annotations

from dataclasses import replace

import sympy

from archc.attention.factors import factored, parts_of
from archc.ir import layer as ir
from archc.ir.builder import Builder
from archc.ir.graph import Graph, Node

ZERO = ir.Constant(sympy.S.Zero)
CHOSEN = ir.Elementwise("where")


def without_parts(attend: ir.Attend) -> ir.Attend:
    """The attend, whose softmaxes are weights, or weights times factors; the same one where they
    are."""
    if attend.body.ids(ir.Noise):  # weights that are dropped at random have a fold of their own
        return attend
    body, read, changed = attend.body.copy(), attend.read.name, False
    found = _Parts(body, {read, attend.reader.name}, read)
    for id in [node.id for node in attend.body]:
        operands = body[id].operands
        made = tuple(map(found.weights, operands)) if found.sums(body[id]) else operands
        if made != operands:
            body.substitute(
                id, body.add(body[id].op, *made, name=body[id].name, span=body[id].span)
            )
            changed = True
    body.prune(body.ids(ir.Input))
    return replace(attend, body=body) if changed else attend


class _Parts:
    """Weights of sums over the tokens read, one after the other."""

    def __init__(self, body: Graph, pairs: set[str], read: str) -> None:
        self.body = body
        self.pairs = pairs
        self.read = read

    def sums(self, node: Node) -> bool:
        """Whether a node is a sum over the tokens read."""
        if isinstance(node.op, ir.Contract):
            return self.read not in node.type.names
        return isinstance(node.op, ir.Reduce) and self.read in node.op.axes

    def weights(self, id: int) -> int:
        """What a sum is made of: weights without softmaxes that are parts, or as it is."""
        if not self.pairs <= {*self.body[id].type.names}:
            return id
        inside = self._masked_after(self.body[id])
        whole, factors = factored(self.body, inside)
        if not isinstance(whole.op, ir.Softmax):
            return self._again(inside.id, inside.operands[0] if inside.op == CHOSEN else None)
        seen = whole.operands[1]
        made = self._again(whole.id, seen, kept=True)
        others = [(fn, self._again(node.id, seen)) for fn, node in factors]
        if made == whole.id and others == [(fn, node.id) for fn, node in factors]:
            return inside.id
        make = Builder(self.body, inside.span)
        for fn, other in others:
            made = make.fn(fn, made, other)
        return make.fn("where", seen, made, make.number(0)) if factors else made

    def _masked_after(self, node: Node) -> Node:
        """Weights of a softmax, of which a condition of its own leaves out some, times 1 or 0."""
        if node.op != CHOSEN or self.body[node.operands[2]].op != ZERO:
            return node
        seen, inner, zero = node.operands
        found = parts_of(self.body, self.body[inner], {*node.type.names})
        if found is None or found[0].operands[1] == seen:
            return node
        make = Builder(self.body, node.span)
        factor = make.fn("where", seen, make.number(1), zero)
        weights = make.fn("mul", inner, factor)
        return self.body[make.fn("where", found[0].operands[1], weights, zero)]

    def _again(self, id: int, mask: int | None, kept: bool = False) -> int:
        """A value of pairs with exponentials for the softmaxes that it is made of, itself as well
        unless it is `kept`; `mask`: what else of it is left out anyhow."""
        node = self.body[id]
        if not self.pairs <= {*node.type.names} or isinstance(node.op, (ir.Input, ir.Contract)):
            return id
        operands = tuple(self._again(each, mask) for each in node.operands)
        if isinstance(node.op, ir.Softmax) and node.op.over == self.read and not kept:
            return self._exponential(node, operands, mask)
        if operands == node.operands:
            return id
        return self.body.add(node.op, *operands, span=node.span)

    def _exponential(self, node: Node, operands: tuple[int, ...], mask: int | None) -> int:
        """exp(score - log of the total), 0 where the softmax does not read."""
        make = Builder(self.body, node.span)
        score, seen, *sink = operands
        least, zero = self.body.add(ir.Constant(-sympy.oo)), make.number(0)
        scores = make.fn("where", seen, score, least)
        total = self.body.add(ir.Reduce("logsumexp", (self.read,)), scores, span=node.span)
        if sink:
            total = make.fn("add", *sink, make.fn("softplus", make.fn("sub", total, *sink)))
        known = make.fn("where", make.fn("eq", total, least), zero, total)
        weight = make.fn("exp", make.fn("sub", score, known))
        return weight if seen == mask else make.fn("where", seen, weight, zero)
