"""An attend's body -> one whose masks have what scores and weights say by themselves.

    softmax(where(t - s < w, score, -inf))  ->  softmax(score), of s with t - w < s as well
    abs(t - s) < w                          ->  t - s < w and t - s > -w

A condition on two positions is then a bound on the tokens read, if it is one, and blocks outside of
it are not walked. Kernels alone see it.
"""

from __future__ import annotations

from functools import partial

import sympy

from archc.attention.bounds import TURNED
from archc.attention.rewritten import rewritten
from archc.ir import layer as ir
from archc.ir.builder import Builder
from archc.ir.graph import Graph, Node

NEGATED = {"lt": "ge", "ge": "lt", "gt": "le", "le": "gt", "eq": "ne", "ne": "eq"}


def in_masks(attend: ir.Attend) -> ir.Attend:
    """The attend with conditions on positions in its masks; the same one where it has none."""
    pairs = {attend.reader.name, attend.read.name}
    return rewritten(attend, partial(_without_abs, pairs=pairs), partial(_masked_more, pairs=pairs))


def _without_abs(body: Graph, node: Node, pairs: set[str]) -> int | None:
    """A condition on how far two positions are apart, as one on each side; None of any other."""
    if not isinstance(node.op, ir.Elementwise) or node.op.fn not in TURNED:
        return None
    fn, (far, limit) = node.op.fn, (body[operand] for operand in node.operands)
    if far.op != ir.Elementwise("abs"):
        fn, far, limit = TURNED[fn], limit, far
    if far.op != ir.Elementwise("abs") or not {*far.type.names} <= pairs or limit.type.axes:
        return None
    make = Builder(body, node.span)
    one = make.fn(fn, *far.operands, limit.id)
    other = make.fn(TURNED[fn], *far.operands, make.fn("neg", limit.id))
    return make.fn("and" if fn in ("lt", "le") else "or", one, other)


def _masked_more(body: Graph, node: Node, pairs: set[str]) -> int | None:
    """A softmax, or a choice between a value and a number, whose mask has the conditions of what
    is masked; None where that has none."""
    if isinstance(node.op, ir.Softmax):
        value, mask, *rest = node.operands
        left_out: sympy.Expr = -sympy.oo
    elif node.op == ir.Elementwise("where") and pairs <= {*node.type.names}:
        mask, value, number = node.operands
        rest, op = [number], body[number].op
        if not isinstance(op, ir.Constant):
            return None
        left_out = op.value
    else:
        return None
    make, found = Builder(body, node.span), 0
    while (more := _condition(body, body[value], left_out, pairs, make)) is not None:
        value, found = more[1], found + 1
        mask = make.fn("and", mask, more[0])
    if not found:
        return None
    operands = (value, mask, *rest) if isinstance(node.op, ir.Softmax) else (mask, value, *rest)
    return body.add(node.op, *operands, name=node.name, span=node.span)


def _condition(
    body: Graph, node: Node, left_out: sympy.Expr, pairs: set[str], make: Builder
) -> tuple[int, int] | None:
    """When a value is not the number that what is left out has, and what it is then."""
    if node.op == ir.Elementwise("add") and left_out == -sympy.oo:
        for value, other in (node.operands, node.operands[::-1]):
            found = _condition(body, body[other], left_out, pairs, make)
            if found is not None and body[found[1]].op == ir.Constant(sympy.S.Zero):
                return found[0], value
        return None
    if node.op != ir.Elementwise("where") or not {*body[node.operands[0]].type.names} <= pairs:
        return None
    condition, yes, no = node.operands
    if body[no].op == ir.Constant(left_out):
        return condition, yes
    if body[yes].op == ir.Constant(left_out):
        return _not(body, condition, make), no
    if (more := _condition(body, body[no], left_out, pairs, make)) is not None:
        value = yes if yes == more[1] else make.fn("where", condition, yes, more[1])
        return make.fn("or", condition, more[0]), value
    if (more := _condition(body, body[yes], left_out, pairs, make)) is not None:
        value = no if no == more[1] else make.fn("where", condition, more[1], no)
        return make.fn("or", _not(body, condition, make), more[0]), value
    return None


def _not(body: Graph, condition: int, make: Builder) -> int:
    """The opposite of a condition."""
    node = body[condition]
    if isinstance(node.op, ir.Elementwise) and node.op.fn in NEGATED:
        return make.fn(NEGATED[node.op.fn], *node.operands)
    if isinstance(node.op, ir.Elementwise) and node.op.fn in ("and", "or"):
        other = "or" if node.op.fn == "and" else "and"
        return make.fn(other, *(_not(body, operand, make) for operand in node.operands))
    return make.fn("not", condition)
