"""Walks that read rows without their scales."""

from __future__ import annotations

from dataclasses import replace

import pytest
from archc.backends.eager.chunked import without

import archc
from archc.compile import for_kernels, lowered
from archc.ir import chunk as ck
from archc.ir import layer as ir
from archc.ir.graph import Graph
from archc.schedule.kept import Kept
from archc.schedule.levels import Levels
from archc.schedule.row_scales import enters, with_plain_rows
from tests.schedule.same import check_same_form
from tests.schedule.test_delayed_solve import form_of


def captured(graph: Graph) -> list[str]:
    """What the walk of a graph captures as the caller has it, under any name."""
    (walk,) = (node for node in graph if isinstance(node.op, ir.Recurrence))
    found = []
    for id in walk.operands:
        node = graph[id]
        while isinstance(node.op, ck.Chunks | ir.Contract) and len(node.operands) == 1:
            node = graph[node.operands[0]]
        found += [node.op.name] if isinstance(node.op, ir.Input) else []
    return found


@pytest.mark.parametrize("spec", ["delta", "gated_delta", "gated_delta_product"])
def test_keys_are_read_as_they_are_under_every_scale(spec: str) -> None:
    layer = for_kernels(lowered(archc.load(spec).layer))
    form = form_of(layer)
    assert form.backward is not None
    heads = ("H",)
    forward, backward = (with_plain_rows(g, heads) for g in (form.forward, form.backward))
    assert captured(form.forward).count("k") < 2
    assert captured(forward).count("k") == captured(backward).count("k") == 2
    if spec != "gated_delta_product":  # whose steps a token are no size to draw
        check_same_form(form, replace(form, forward=forward, backward=backward))


@pytest.mark.parametrize("spec", ["gated_delta", "gated_delta_product"])
def test_queries_are_read_as_they_are_where_the_walk_makes_what_follows(spec: str) -> None:
    """That is where nothing is saved for a gradient."""
    form = form_of(for_kernels(lowered(archc.load(spec).layer)))
    alone = without(form.forward, form.saved)
    found = with_plain_rows(alone, ("H",))
    assert _scaled_queries(alone) and not _scaled_queries(found)
    assert _scaled_queries(with_plain_rows(form.forward, ("H",)))
    if spec != "gated_delta_product":  # whose steps a token are no size to draw
        before, after = (replace(form, forward=g, backward=g, saved=()) for g in (alone, found))
        check_same_form(before, after)


def _scaled_queries(graph: Graph) -> bool:
    """Whether a product with a state that a walk found is one of queries and a scale."""
    products = (n for n in graph if isinstance(n.op, ir.Contract) and len(n.operands) == 2)
    for node in products:
        ops = [graph[each].op for each in node.operands]
        if any(isinstance(each, ir.Result) and each.name == "S@start" for each in ops):
            return any(each == ir.Elementwise("mul") for each in ops)
    raise AssertionError("no such product")


@pytest.mark.parametrize("spec", ["gla", "linear_attention_simple"])
def test_rows_that_are_made_in_any_case_stay(spec: str) -> None:
    form = form_of(for_kernels(lowered(archc.load(spec).layer)))
    assert with_plain_rows(form.forward, ("H",)) is form.forward


def test_numbers_that_lie_apart_stand_by_rows_where_a_walk_reads_them() -> None:
    """So it copies beta ahead, and makes beta v itself; k stays as it is scaled by channel."""
    form = form_of(for_kernels(lowered(archc.load("kda").layer)))
    found = with_plain_rows(form.forward, ("H",))
    assert captured(form.forward) == ["S[0]"]
    assert sorted(captured(found)) == ["S[0]", "beta", "v"]
    check_same_form(form, replace(form, forward=found))
    (walk,) = (node for node in found if isinstance(node.op, ir.Recurrence))
    kept = {*Kept(found, Levels(found, ("H",), {}), ("H",)).ids} & {*walk.operands}
    assert [found[id].type.names for id in kept if enters(found, id)] == [("batch", "n", "H", "j")]
