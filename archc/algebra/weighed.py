"""Layer IR -> layer IR: a sum over the tokens read of weights times vectors is a product.

    sum[s](p * v[s])  ->  p @ v[s]

No pair of tokens has a vector then, and attentions are known by such products.
"""

from __future__ import annotations

import sympy

from archc.algebra.softmaxes import masked_value
from archc.ir import layer as ir
from archc.ir.builder import Builder
from archc.ir.graph import Graph, Node
from archc.ir.rewrite import rewrite_attend


def sums_of_products(graph: Graph, node: Node) -> int | None:
    """An attend that sums weights times vectors -> one that multiplies them."""
    return rewrite_attend(graph, node, _product)


def _product(body: Graph, node: Node, attend: ir.Attend) -> int | None:
    """`sum(where(mask, p * v, 0))` -> the product of `where(mask, p, 0)` and v."""
    read = attend.read.name
    if node.op != ir.Reduce("sum", (read,)):
        return None
    summed = body[node.operands[0]]
    mask, value = masked_value(body, summed, sympy.S.Zero)
    value = summed if value is None else value
    if value.op != ir.Elementwise("mul") or len(body.users(value.id)) != 1:
        return None
    both = [body[operand] for operand in value.operands]
    for weights, vectors in (both, both[::-1]):
        if _weighs(weights, vectors, read) and (mask < 0 or _covers(weights, body[mask])):
            weighed = weights.id if mask < 0 else _seen(body, weights, mask)
            ins = (weights.type.names, vectors.type.names)
            out = tuple((axis.name, axis) for axis in node.type.axes)
            made = ir.Contract(ins, out)
            return body.add(made, weighed, vectors.id, name=node.name, span=node.span)
    return None


def _weighs(weights: Node, vectors: Node, read: str) -> bool:
    """Whether each pair of tokens has a weight, and each token read numbers of which all have the
    same weight."""
    own, dims = {*weights.type.names}, {a.name for a in vectors.type.axes if a.kind == "dim"}
    kinds = [axis.kind for axis in weights.type.axes]
    real = weights.type.dtype == vectors.type.dtype == "real"
    of_pairs = kinds.count("stream") == 2 and read in own
    return real and of_pairs and read in vectors.type.names and not dims <= own


def _covers(weights: Node, mask: Node) -> bool:
    """Whether a mask says no more than one thing of each weight."""
    return {*mask.type.names} <= {*weights.type.names}


def _seen(body: Graph, weights: Node, mask: int) -> int:
    """Weights that are 0 where the mask is not."""
    if isinstance(weights.op, ir.Softmax) and weights.operands[1] == mask:
        return weights.id
    make = Builder(body)
    return make.fn("where", mask, weights.id, make.number(0))
