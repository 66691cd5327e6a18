"""An attend's body -> one in which sums of a softmax's weights are functions of its total.

    sum[s](softmax(score, sink))  ->  sigmoid(logsumexp(score) - sink)

Without a sink it is 1; a reader that reads nothing has 0. Kernels alone see it: they have the log
of the total, and need not make weights of pairs.
"""

from __future__ import annotations

import sympy

from archc.attention.gated import with_gates
from archc.attention.inner_softmax import without_parts
from archc.attention.masks import in_masks
from archc.attention.multiplied_out import multiplied_out
from archc.attention.rewritten import rewritten
from archc.attention.spread import spread
from archc.ir import layer as ir
from archc.ir.builder import Builder
from archc.ir.graph import Graph, Node


def as_folds(attend: ir.Attend) -> ir.Attend:
    """The attend as kernels see it, with as many sums over the tokens read as are folds."""
    whole = without_parts(spread(in_masks(attend)))
    return with_gates(multiplied_out(of_totals(whole)))


def of_totals(attend: ir.Attend) -> ir.Attend:
    """The attend without sums of a softmax's weights; the same one where it has none."""
    read = attend.read.name

    def made(body: Graph, node: Node) -> int | None:
        weights = _weights(body, node, read)
        return None if weights is None else _sum(body, weights, read)

    return rewritten(attend, made)


def _weights(body: Graph, node: Node, read: str) -> Node | None:
    """The softmax whose weights a node sums over the tokens read, masked once more or not."""
    if node.op != ir.Reduce("sum", (read,)):
        return None
    found = body[node.operands[0]]
    if found.op == ir.Elementwise("where"):
        mask, weights, rest = (body[operand] for operand in found.operands)
        if rest.op != ir.Constant(sympy.S.Zero) or mask.id not in weights.operands[1:2]:
            return None
        found = weights
    return found if isinstance(found.op, ir.Softmax) and found.op.over == read else None


def _sum(body: Graph, weights: Node, read: str) -> int:
    """The sum of a softmax's weights, from the log of its total."""
    make = Builder(body, weights.span)
    score, mask, *sink = weights.operands
    least = body.add(ir.Constant(-sympy.oo))
    scores = make.fn("where", mask, score, least)
    total = body.add(ir.Reduce("logsumexp", (read,)), scores, span=weights.span)
    share = make.fn("sigmoid", make.fn("sub", total, *sink)) if sink else make.number(1)
    return make.fn("where", make.fn("eq", total, least), make.number(0), share)
