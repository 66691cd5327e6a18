"""Scans of chunks that a Recurrence joins: S after a chunk is kept * S + local, elementwise."""

from __future__ import annotations

from archc.ir import layer as ir

KEPT, LOCAL = "kept", "local"
"""The names of a Recurrence's inputs: the share of the state that a chunk keeps, and its addend."""


def is_joining(op: ir.Recurrence) -> bool:
    """Whether a Recurrence has the state kept * S + local, and nothing else."""
    if {*op.captures} != {KEPT, LOCAL} or len(op.states) != 1 or op.reverse:
        return False
    body, (state,) = op.body, op.states
    made = body[body.outputs[state.name]]
    terms = [body[o] for o in made.operands]
    if made.op != ir.Elementwise("add") or len(terms) != 2:
        return False
    product = next((term for term in terms if term.op == ir.Elementwise("mul")), None)
    names = {getattr(term.op, "name", None) for term in terms}
    factors = set() if product is None else {body[o].op for o in product.operands}
    return LOCAL in names and {getattr(op, "name", "") for op in factors} == {KEPT, state.before}
