"""Sums of a value times its gradient, from the products that a gradient has anyway."""

from __future__ import annotations

import pytest
import torch

import archc
from archc.compile import again_for_kernels, lowered
from archc.ir import layer as ir
from archc.ir.chunk import ChunkForm
from archc.ir.graph import Graph
from archc.ir.meaning import evaluate_graph
from archc.schedule.inner import inner_sums
from tests.lowering.launches import SIZES, SMALL, drawn


def forms(spec: str) -> tuple[ChunkForm, ChunkForm]:
    """A spec's chunked form, before and after."""
    before = again_for_kernels(lowered(archc.load(spec).layer))
    found = []
    for layer in (before, inner_sums(before)):
        (fold,) = (node.op for node in layer.graph if isinstance(node.op, ir.Fold))
        assert fold.chunked is not None
        found.append(fold.chunked)
    return found[0], found[1]


def products(graph: Graph) -> int:
    return sum(isinstance(n.op, ir.Contract) and len(n.operands) == 2 for n in graph)


@pytest.mark.parametrize(("spec", "fewer"), [("linear_attention", 2), ("mlstm", 2)])
def test_a_quotient_is_not_made_again(spec: str, fewer: int) -> None:
    """Neither q S nor P v is left, and every gradient is the same."""
    before, after = forms(spec)
    assert before.backward is not None and after.backward is not None
    assert products(after.backward) == products(before.backward) - fewer
    graph = before.backward
    symbols = {s.name for n in graph for axis in n.type.axes for s in axis.size.free_symbols}
    sizes = {name: SIZES.get(name, 2 if name == "H" else SMALL) for name in sorted(symbols)}
    draw = torch.Generator().manual_seed(0)
    inputs = {n.op.name: drawn(n, sizes, draw) for n in graph if isinstance(n.op, ir.Input)}
    made, same = (evaluate_graph(each, inputs, sizes) for each in (graph, after.backward))
    assert [*made] == [*same]
    for name, value in made.items():
        torch.testing.assert_close(same[name], value, rtol=1e-9, atol=1e-11, msg=name)


@pytest.mark.parametrize("spec", ["gla", "mom"])
def test_what_is_needed_in_any_case_stays(spec: str) -> None:
    """And what would have to be divided by a weight, which may be 0."""
    before = again_for_kernels(lowered(archc.load(spec).layer))
    assert inner_sums(before) is before
