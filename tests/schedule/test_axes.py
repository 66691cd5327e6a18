"""Which axes an op crosses."""

from __future__ import annotations

import archc
from archc.compile import lowered
from archc.ir import layer as ir
from archc.schedule.axes import reduction_dims


def test_a_product_crosses_what_it_sums_and_what_it_renames() -> None:
    """`K` against `K'`: a program that has a block of one does not have that block of the other."""
    layer = lowered(archc.load("rwkv7").layer)
    (fold,) = (node.op for node in layer.graph if isinstance(node.op, ir.Fold))
    graph = fold.chunked.backward
    products = [node for node in graph if isinstance(node.op, ir.Contract)]
    renamed = [n for n in products if len(n.operands) == 1 and "K'" in reduction_dims(graph, n)]
    assert renamed
    assert all("K" in reduction_dims(graph, node) for node in renamed)
