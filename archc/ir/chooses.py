"""Whether an attend makes nothing but choices of its readers."""

from __future__ import annotations

from archc.ir import layer as ir


def chooses(op: ir.Attend) -> bool:
    """Whether all that an attend makes are choices: the places of the largest scores of each
    reader. They have no gradient, and those of one reader do not depend on other readers."""
    return all(isinstance(op.body[id].op, ir.Top) for id in op.body.outputs.values())
