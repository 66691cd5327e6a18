"""Body -> body: sums at places that are looked up are products with a matrix of zeros and ones.

    y[k] = sum of x[n] with i[n] = k  ->  y = real(index[k] == i[n]) @ x

Tiles of a program add nothing up by places. A run of places is no sum: a kernel reads it.
"""

from __future__ import annotations

from archc.ir import layer as ir
from archc.ir.builder import Builder
from archc.ir.free_names import marked
from archc.ir.graph import Graph, Node
from archc.ir.rewrite import rewrite_graph
from archc.lowering.elsewhere import run_of


def without_scatters(graph: Graph) -> Graph:
    """The graph with products in place of such sums; itself if there are none."""
    return rewrite_graph(graph, [_product])


def _product(graph: Graph, node: Node) -> int | None:
    """A sum at places, as a product."""
    if not isinstance(node.op, ir.Scatter) or run_of(graph, node.operands[1], node.op.into):
        return None
    value, index = node.operands
    into, names, b = node.op.into, graph[value].type.names, Builder(graph, node.span)
    row = marked(into.name, {*names})
    hit = b.real(b.fn("eq", b.add(ir.Position(into.renamed(row))), index))
    out = tuple((row if axis == into else axis.name, axis) for axis in node.type.axes)
    return b.add(ir.Contract((names, b.names(hit)), out), value, hit)
