"""Dropout between two parts of a region: its factor is drawn before both.

The operand of `Noise` gives a shape alone. Drawn in the shape of an earlier value, the factor is
something that a region reads, and no value of the region stands between two parts of it.
"""

from __future__ import annotations

from archc.ir import layer as ir
from archc.ir.graph import Graph, Node
from archc.ir.token_region import is_token_type

STREAM = "t"


def drawn_before(graph: Graph, node: Node) -> int | None:
    """The factor of a value along the tokens -> that of the first value of its type behind it."""
    if not isinstance(node.op, ir.Noise) or not is_token_type(node.type, STREAM):
        return None
    behind = sorted(graph.ancestors(node.operands[0]))
    alike = [id for id in behind if graph[id].type == node.type]
    return graph.add(node.op, alike[0], span=node.span) if alike else None
