"""Weights of a sum over the tokens read that are those of a softmax times a factor of each pair:
`(softmax(abs(z)) * sign(z)) @ v`. The softmax is of its score alone.

where(seen, softmax(z, seen) * f / g, 0)  ->  softmax(z, seen), and f and g
"""

from __future__ import annotations

import sympy

from archc.ir import layer as ir
from archc.ir.builder import Builder
from archc.ir.graph import Graph, Node

Factors = tuple[tuple[str, Node], ...]
"""What a softmax is multiplied ("mul") or divided ("div") by, in order."""

NOT_THERE = "weights of chosen tokens, or through matrices between tokens, are times a factor"


def factored(body: Graph, weights: Node) -> tuple[Node, Factors]:
    """Weights before they are multiplied, and what by; themselves, where they are no softmax times
    something."""
    mask, inner = None, weights
    if weights.op == ir.Elementwise("where"):
        mask, inner, rest = (body[operand] for operand in weights.operands)
        if rest.op != ir.Constant(sympy.S.Zero):
            return weights, ()
    found = parts_of(body, inner, {*weights.type.names})
    if found is None or not found[1] or (mask is not None and found[0].operands[1] != mask.id):
        return weights, ()
    return found


def parts_of(body: Graph, node: Node, names: set[str]) -> tuple[Node, Factors] | None:
    """The softmax of all pairs that a product has, and its other factors."""
    if isinstance(node.op, ir.Softmax):
        return (node, ()) if {*node.type.names} == names else None
    if node.op not in (ir.Elementwise("mul"), ir.Elementwise("div")):
        return None
    first, second = (body[operand] for operand in node.operands)
    if (left := parts_of(body, first, names)) is not None:
        return left[0], (*left[1], (node.op.fn, second))
    right = parts_of(body, second, names) if node.op.fn == "mul" else None
    return None if right is None else (right[0], (*right[1], ("mul", first)))


def as_real(graph: Graph, value: int) -> int:
    """A value of a formula as a real, which has a gradient: of a condition 1 or 0."""
    make = Builder(graph)
    if graph[value].type.dtype == "bool":
        value = make.fn("where", value, make.number(1), make.number(0))
    real = graph[value].type.dtype == "real"
    return value if real else make.fn("div", value, make.number(1))
