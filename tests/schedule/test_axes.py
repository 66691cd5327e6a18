"""Which axes an op crosses."""

from __future__ import annotations

import pytest
import sympy
import torch

import archc
from archc.compile import lowered
from archc.dims import Axis
from archc.ir import chunk as ck
from archc.ir import layer as ir
from archc.schedule.axes import reduction_dims
from tests.graphs import Sketch, axis, single


def test_a_product_crosses_what_it_sums_and_what_it_renames() -> None:
    """`K` against `K'`: a program that has a block of one does not have that block of the other."""
    layer = lowered(archc.load("rwkv7").layer)
    (recurrence,) = (node.op for node in layer.graph if isinstance(node.op, ir.Recurrence))
    graph = recurrence.chunked.backward
    products = [node for node in graph if isinstance(node.op, ir.Contract)]
    renamed = [n for n in products if len(n.operands) == 1 and "K'" in reduction_dims(graph, n)]
    assert renamed
    assert all("K" in reduction_dims(graph, node) for node in renamed)


J = axis("i'")
LENGTHS = {"batch": 2, "t": 5, "i": 4, "i'": 4, "K": 3, "K'": 3}
OPS: list[tuple[object, tuple[str, ...]]] = [
    (ck.Stack(Axis("n", sympy.Integer(2))), ("batch i K", "batch i K")),
    (ck.Select("i", -1), ("batch i K",)),
    (ck.Detach(), ("batch i K",)),
    (ck.Last("t"), ("batch t K", "batch K")),
    (ck.Sums("i"), ("batch i K",)),
    (ck.Rest("i"), ("batch i K",)),
    (ck.Less("i"), ("batch i K", "batch K")),
    (ck.Less("i", last=True), ("batch i K", "batch K")),
    (ck.Middle("i"), ("batch i K",)),
    (ck.Move("i", 1), ("batch i K",)),
    (ck.Scan("i"), ("batch i K", "batch i K", "batch K")),
    (ck.Scan("i", matrix=("K'", "K")), ("batch i K' K", "batch i K", "batch K")),
    (ck.Spans("i", J), ("batch i K",)),
    (ck.Differences("i", J), ("batch i K",)),
    (ck.SpansGradient("i", "i'"), ("batch i i' K",)),
    (ck.Gram(("K",), "i", J), ("batch i K", "batch i K", "batch i K")),
    (ck.NearGram(("K",), "i", J), (*["batch i K"] * 2, "batch K", *["batch i K"] * 3)),
    (ck.Mix("i", "i'"), ("batch i i'", "batch i K", "batch i K")),
    (ck.GateGradient("i", "i'"), ("batch i i'", "batch i K", "batch i K", "batch i K")),
    (ck.MixSum((ck.Mix("i", "i'"),) * 2), ("batch i i'", "batch i K") * 2 + ("batch i K",)),
    (ck.GateShares((ck.GateGradient("i", "i'"),)), ("batch i i'", *("batch i K",) * 3)),
    (ck.Inverse("i", "i'"), ("batch i i'",)),
    (ir.Elementwise("mul"), ("batch i K", "K")),
    (ir.Reduce("max", ("i",)), ("batch i K",)),
    (ir.Top("K", sympy.Integer(2)), ("batch i K",)),
    (ir.Solve("K", "K'", None), ("batch K K'", "batch K")),
    (ir.Shift("t", 2), ("batch t K",)),
    (ir.Window("t", Axis("W", sympy.Integer(2))), ("batch t K",)),
]


@pytest.mark.parametrize(("op", "dims"), OPS, ids=[type(op).__name__ for op, _ in OPS])
def test_along_what_is_not_crossed_positions_may_change_places(
    op: object, dims: tuple[str, ...]
) -> None:
    """The result of operands whose positions are in another order along an axis is the result, its
    positions in that order."""
    s = Sketch()
    ids = [s.input(f"x{n}", names) for n, names in enumerate(dims)]
    node = s.graph[s.add(op, *ids)]
    s.outputs(y=node.id)
    given = {f"x{n}": torch.rand([LENGTHS[d] for d in names.split()], dtype=torch.float64)
             for n, names in enumerate(dims)}  # fmt: skip
    wanted = single(s, **given)
    crossed = set(reduction_dims(s.graph, node))
    for name in {*" ".join(dims).split()}:
        order = torch.arange(LENGTHS[name]).flip(0)
        moved = {
            key: x.index_select(of.split().index(name), order) if name in of.split() else x
            for (key, x), of in zip(given.items(), dims, strict=True)
        }
        kept = name in node.type.names
        same = wanted.index_select(node.type.names.index(name), order) if kept else wanted
        assert name in crossed or torch.allclose(single(s, **moved), same), name
