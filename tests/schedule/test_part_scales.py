"""Rows that the programs of a walk scale, of which they have a part each."""

from __future__ import annotations

from dataclasses import replace

import pytest

import archc
from archc.compile import for_kernels, lowered
from archc.ir import chunk as ck
from archc.ir.graph import Graph
from archc.schedule.part_scales import with_scales_of_parts
from archc.schedule.partition import partition
from archc.schedule.plain_factors import with_plain_factors
from tests.schedule.same import check_same_form
from tests.schedule.test_delayed_solve import form_of
from tests.schedule.test_plain_factors import HEADS, added, factors


def form(spec: str) -> ck.ChunkForm:
    """A spec's chunked form, with products of rows as they entered."""
    found = form_of(for_kernels(lowered(archc.load(spec).layer)))
    return replace(found, forward=with_plain_factors(found.forward, HEADS))


def stored(graph: Graph, dims: set[str]) -> list[str]:
    """The buffers between kernels that have these dims."""
    stream = next(a for n in graph for a in n.type.axes if a.name == "t")
    made = partition(graph, "memory", stream, HEADS, {}, fused=True)
    return [each.name for each in made.buffers if dims <= {*each.type.names}]


def test_values_are_scaled_where_programs_have_a_part_of_them() -> None:
    """Keys have all of K in every program, values a part of V: so keys are as they entered."""
    before = form("retention")
    after = replace(before, forward=with_scales_of_parts(before.forward, HEADS))
    check_same_form(before, after)
    found = [factors(each.forward, added(each.forward)) for each in (before, after)]
    assert found == [[[False, True]], [[True, False]]]


@pytest.mark.parametrize(("spec", "dim"), [("retention", "K"), ("mamba2", "P")])
def test_scaled_rows_are_not_in_memory(spec: str, dim: str) -> None:
    """Only their scale is: a number for each row."""
    graph = form(spec).forward
    assert not stored(with_scales_of_parts(graph, HEADS), {"n", "i", dim})


@pytest.mark.parametrize("spec", ["gla", "kda", "gated_delta", "mlstm", "linear_attention_simple"])
def test_other_walks_stay(spec: str) -> None:
    """Scales have a dim, walks correct rows or carry two states, or nothing is scaled."""
    graph = form(spec).forward
    assert with_scales_of_parts(graph, HEADS) is graph
