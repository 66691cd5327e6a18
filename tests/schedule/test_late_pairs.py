"""Gradients whose last kernel makes the matrices of pairs, and writes where it reads."""

from __future__ import annotations

from dataclasses import replace

import pytest

import archc
from archc.compile import for_kernels, lowered, prepared
from archc.ir import layer as ir
from archc.ir.kernel import Kernels
from archc.schedule.in_place import in_place
from archc.schedule.late_pairs import of_pairs, with_late_pairs
from archc.schedule.partition import partition
from archc.schedule.plain_factors import with_plain_factors
from archc.schedule.row_scales import with_plain_rows
from tests.schedule.same import check_same_form
from tests.schedule.test_delayed_solve import form_of

HEADS = ("H",)


def plan_of(spec: str) -> Kernels:
    """The kernels of the gradient of a spec's memory."""
    form = form_of(for_kernels(lowered(archc.load(spec).layer)))
    assert form.backward is not None
    graph = prepared(form.backward, HEADS)
    tokens = next(a for n in graph for a in n.type.axes if a.kind == "stream" and a.name == "t")
    return partition(graph, "p", tokens, HEADS, {})


@pytest.mark.parametrize("spec", ["delta", "gated_delta"])
def test_a_gradient_with_late_pairs_is_the_same(spec: str) -> None:
    form = form_of(for_kernels(lowered(archc.load(spec).layer)))
    assert form.backward is not None
    graph = with_plain_factors(form.backward, HEADS, of_pairs(form.backward, HEADS))
    found = with_late_pairs(with_plain_rows(graph, HEADS), HEADS)
    assert found is not graph
    turned = [n for n in found if isinstance(n.op, ir.Contract) and n.type.names[-2:] == ("j", "i")]
    assert len(turned) == 2
    check_same_form(form, replace(form, backward=found))


@pytest.mark.parametrize("spec", ["kda", "gla", "gated_delta_product", "retention"])
def test_other_gradients_stay(spec: str) -> None:
    form = form_of(for_kernels(lowered(archc.load(spec).layer)))
    assert form.backward is not None
    assert with_late_pairs(form.backward, HEADS) is form.backward


def test_no_matrix_of_pairs_and_no_query_gradient_is_handed_on() -> None:
    plan = plan_of("gated_delta")
    first, last = plan.kernels[0], plan.kernels[-1]
    assert {"d.q", "d.k", "d.v"} <= {*last.stores}
    assert not [name for name in first.stores if name.startswith("d.")]


def test_a_gradient_stands_where_the_last_kernel_read() -> None:
    plan = plan_of("gated_delta")
    buffers = {buffer.name: buffer for buffer in plan.buffers}
    assert {name: b.over for name, b in buffers.items() if b.over} == {"d.v": "d.U0.0"}
    assert [name for name, b in buffers.items() if b.by_tokens] == ["d.U0.0"]
    assert buffers["d.U0.0"].type == buffers["d.v"].type


@pytest.mark.parametrize(("spec", "over"), [("mesa", "product.3"), ("gla", "k_scaled")])
def test_rows_that_are_0_beyond_the_last_token_may_stand_by_tokens(spec: str, over: str) -> None:
    """Whoever made them, and whatever the names of their dims: a solution of 0 is 0."""
    buffers = {buffer.name: buffer for buffer in plan_of(spec).buffers}
    (result,) = (b for b in buffers.values() if b.over)
    rows = buffers[over]
    assert rows.by_tokens and result.over == over
    sizes = [[axis.size for axis in b.type.axes] for b in (rows, result)]
    assert sizes[0] == sizes[1]


def test_rows_beyond_the_last_token_that_are_seen_stay_in_memory() -> None:
    """A sum over all rows of what a walk stores, were it an output, would miss them."""
    plan = plan_of("gated_delta")
    (stored,) = {b.name for b in plan.buffers if b.by_tokens}
    (id,) = (k.stores[stored] for k in plan.kernels if stored in k.stores)
    rows = replace(next(b for b in plan.buffers if b.name == stored), by_tokens=False)
    rows = replace(rows, type=plan.graph[id].type)
    bare = tuple(rows if b.name == stored else replace(b, over="") for b in plan.buffers)
    assert in_place(replace(plan, buffers=bare)).buffers == plan.buffers
    graph = plan.graph.copy()
    graph.outputs["seen"] = graph.add(ir.Reduce("sum", ("j",)), id)
    assert in_place(replace(plan, graph=graph, buffers=bare)).buffers == bare
