"""Layer IR -> layer IR: weights of tokens that are divided by their sum are a softmax.

    p = exp(z),  p / sum[s](p)          ->  softmax(z)
    p = exp(z - max[s](z)), the same    ->  softmax(z)

A softmax takes the largest score off by itself, and is what attentions are known by.
"""

from __future__ import annotations

import sympy

from archc.ir import layer as ir
from archc.ir.graph import Graph, Node
from archc.ir.rewrite import rewrite_attend


def softmaxes(graph: Graph, node: Node) -> int | None:
    """An attend whose weights are divided by their sum -> one with softmaxes."""
    return rewrite_attend(graph, node, _softmax)


def _softmax(body: Graph, node: Node, attend: ir.Attend) -> int | None:
    """`where(mask, p / sum(where(mask, p, 0)), 0)` -> the softmax of log p."""
    read = attend.read.name
    mask, share = masked_value(body, node, sympy.S.Zero)
    if share is None or share.op != ir.Elementwise("div"):
        return None
    weights, total = (body[operand] for operand in share.operands)
    if weights.op != ir.Elementwise("exp") or total.op != ir.Reduce("sum", (read,)):
        return None
    if masked_value(body, body[total.operands[0]], sympy.S.Zero) != (mask, weights):
        return None
    score = _without_largest(body, body[weights.operands[0]], mask, read)
    return body.add(ir.Softmax(read), score, mask, name=share.name, span=share.span)


def masked_value(body: Graph, node: Node, rest: sympy.Expr) -> tuple[int, Node | None]:
    """The mask and the value of `where(mask, value, rest)`; no value of anything else."""
    if node.op == ir.Elementwise("where"):
        mask, value, other = node.operands
        if body[other].op == ir.Constant(rest):
            return mask, body[value]
    return -1, None


def _without_largest(body: Graph, score: Node, mask: int, read: str) -> int:
    """z of `z - max(z)` over the tokens read; any other score is itself."""
    if score.op == ir.Elementwise("sub"):
        value, largest = (body[operand] for operand in score.operands)
        if largest.op == ir.Reduce("max", (read,)):
            seen = masked_value(body, body[largest.operands[0]], -sympy.oo)
            if seen == (mask, value):
                return value.id
    return score.id
