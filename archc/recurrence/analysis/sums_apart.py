"""A read of a sum of matrices that a recurrence carries as a sum of reads, one of each.

    o = (A[t] - C[t]).T @ q  ->  o = A[t].T @ q - C[t].T @ q

Each state is then read by itself, and may be computed in chunks by itself.
"""

from __future__ import annotations

from dataclasses import replace

from archc.ir import layer as ir
from archc.ir.graph import Graph, Node
from archc.ir.rewrite import rewrite_graph

SUMS = ("add", "sub")


def reads_apart(recurrence: ir.Recurrence) -> ir.Recurrence:
    """The Recurrence, with no read of a sum of its matrices; itself if it has none."""
    before = {state.before for state in recurrence.states}

    def of_terms(body: Graph, read: Node) -> int | None:
        """`(A + C) @ q` -> `A @ q + C @ q`"""
        if not ir.is_product(read.op):
            return None
        for side, operand in enumerate(read.operands):
            total = body[operand]
            if _is_sum(body, total, before) and len(read.type.axes) < len(total.type.axes):
                both = [[*read.operands], [*read.operands]]
                for own, term in zip(both, total.operands, strict=True):
                    own[side] = term
                return body.add(total.op, *(body.add(read.op, *own) for own in both))
        return None

    body = rewrite_graph(recurrence.body, [of_terms])
    return recurrence if body is recurrence.body else replace(recurrence, body=body)


def _is_sum(body: Graph, node: Node, before: set[str]) -> bool:
    """Whether a value is a sum of two with all its axes, each of other states."""
    if not isinstance(node.op, ir.Elementwise) or node.op.fn not in SUMS:
        return False
    if any(body[operand].type != node.type for operand in node.operands):
        return False
    one, other = (_states_of(body, operand, before) for operand in node.operands)
    return bool(one and other) and one != other


def _states_of(body: Graph, id: int, before: set[str]) -> set[str]:
    """The states before the token that a value is made of."""
    every = (body[each].op for each in (*body.ancestors(id), id))
    return {op.name for op in every if isinstance(op, ir.Input)} & before
