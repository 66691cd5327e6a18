"""Weights of a sum over the tokens read of which training drops some: `dropout(softmax(z), p) @ v`.

where(seen, softmax(z, seen) * noise, 0)  ->  softmax(z, seen), and p
"""

from __future__ import annotations

import sympy

from archc.ir import layer as ir
from archc.ir.graph import Graph, Node

IN_PART = "a part of its weights is dropped at random"
NOT_THERE = "weights of chosen tokens, or through matrices between tokens, are dropped at random"


def undropped(body: Graph, sum: Node, weights: Node) -> tuple[Node, sympy.Expr | None]:
    """Weights before some are dropped, or what is dropped under a mask, and the probability of
    that; None where none is."""
    if not isinstance(sum.op, ir.Contract):
        return weights, None
    mask, inner = None, weights
    if weights.op == ir.Elementwise("where"):
        mask, inner, rest = (body[operand] for operand in weights.operands)
        if rest.op != ir.Constant(sympy.S.Zero):
            return weights, None
    kept, p = before_noise(body, inner)
    if not isinstance(kept.op, ir.Softmax):
        return (kept if mask is None else weights), p
    return (kept, p) if mask is None or kept.operands[1] == mask.id else (weights, None)


def before_noise(body: Graph, node: Node) -> tuple[Node, sympy.Expr | None]:
    """A value before some of its numbers are dropped, and the probability of that; None, with the
    value itself, where none is."""
    if node.op == ir.Elementwise("mul"):
        both = [body[operand] for operand in node.operands]
        for noise, kept in (both, both[::-1]):
            if isinstance(noise.op, ir.Noise) and noise.type == kept.type == node.type:
                return kept, noise.op.p
    return node, None


def noise_in(body: Graph, *formulas: Node) -> Node | None:
    """The noise that a score is made of, or a factor, if one is of any."""
    ids = (id for each in formulas for id in (each.id, *body.ancestors(each.id)))
    inner = map(body.__getitem__, ids)
    return next((node for node in inner if isinstance(node.op, ir.Noise)), None)
