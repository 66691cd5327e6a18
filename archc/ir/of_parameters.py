"""What is made of parameters alone, the same for every token, as `-exp(A_log)`: kernels make it
again rather than wait for launches of its own."""

from __future__ import annotations

from archc.ir import layer as ir
from archc.ir.graph import Graph

OF_PARAMETERS = 4
"""How many ops a program makes again of parameters alone."""


def is_of_parameters(graph: Graph, id: int) -> bool:
    """Whether a value is made of parameters and numbers alone, by few ops an element: a program
    makes it again for less than what it takes to launch them."""
    every = [graph[each] for each in (id, *graph.ancestors(id))]
    made = [node for node in every if isinstance(node.op, ir.Elementwise)]
    rest = [node for node in every if not isinstance(node.op, ir.Elementwise)]
    return 0 < len(made) <= OF_PARAMETERS and all(
        isinstance(node.op, ir.Param | ir.Constant) for node in rest
    )
