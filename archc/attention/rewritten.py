"""An attend with another body."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from archc.ir import layer as ir
from archc.ir.graph import Graph, Node

Change = Callable[[Graph, Node], int | None]
"""What stands in the place of a node of a body, added to it; None where the node stays."""


def rewritten(attend: ir.Attend, *changes: Change) -> ir.Attend:
    """The attend after changes, each of which looks at every node; the same one where nothing
    changes."""
    body, changed = attend.body.copy(), False
    for change in changes:
        for id in [node.id for node in body]:
            made = change(body, body[id])
            if made is not None:
                body.substitute(id, made)
                changed = True
    body.prune(body.ids(ir.Input))
    return replace(attend, body=body) if changed else attend
