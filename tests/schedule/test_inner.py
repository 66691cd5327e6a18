"""Sums of a value times its gradient, from the products that a gradient has anyway."""

from __future__ import annotations

import pytest

import archc
from archc.compile import FOR_KERNELS, lowered
from archc.ir import layer as ir
from archc.ir.chunk import ChunkForm
from archc.ir.graph import Graph
from archc.schedule.inner import inner_sums
from tests.schedule.same import check_same_form


def before_it(spec: str) -> ir.Layer:
    """A layer as the pass is given it."""
    layer = lowered(archc.load(spec).layer)
    for name, step in FOR_KERNELS:
        if name == "inner_sums":
            return layer
        layer = step(layer)
    raise AssertionError("no such pass")


def forms(spec: str) -> tuple[ChunkForm, ChunkForm]:
    """A spec's chunked form, before and after."""
    before = before_it(spec)
    found = []
    for layer in (before, inner_sums(before)):
        (recurrence,) = (node.op for node in layer.graph if isinstance(node.op, ir.Recurrence))
        assert recurrence.chunked is not None
        found.append(recurrence.chunked)
    return found[0], found[1]


def products(graph: Graph) -> int:
    return sum(isinstance(n.op, ir.Contract) and len(n.operands) == 2 for n in graph)


@pytest.mark.parametrize(("spec", "fewer"), [("linear_attention", 2), ("mlstm", 2)])
def test_a_quotient_is_not_made_again(spec: str, fewer: int) -> None:
    """Neither q S nor P v is left, and every gradient is the same."""
    before, after = forms(spec)
    assert before.backward is not None and after.backward is not None
    assert products(after.backward) == products(before.backward) - fewer
    check_same_form(before, after)


@pytest.mark.parametrize("spec", ["gla", "mom"])
def test_what_is_needed_in_any_case_stays(spec: str) -> None:
    """And what would have to be divided by a weight, which may be 0."""
    before = before_it(spec)
    assert inner_sums(before) is before
