"""Rows that stand as they are seen from the middle of their chunk."""

from __future__ import annotations

import pytest
import torch

from archc.compile import prepared
from archc.ir import chunk as ck
from archc.ir import layer as ir
from archc.ir.graph import Graph
from archc.ir.kernel import NARROW
from archc.ir.meaning import evaluate_graph
from archc.schedule.gate_sums import with_sums
from archc.schedule.near_rows import with_common_decays, with_near_rows
from archc.schedule.partition import partition
from archc.schedule.row_scales import with_plain_rows
from tests.lowering.launches import SIZES, SMALL, drawn
from tests.schedule.same import symbols
from tests.schedule.test_partition import recurrence_of

GATES = {"soft": 0.1, "hard": 400.0}
"""What log gates are multiplied by: of the second, sums are further apart than 64."""


def near(graph: Graph) -> Graph:
    """A graph after the passes."""
    return with_common_decays(with_plain_rows(with_near_rows(graph), ("H",)))


def forward(spec: str) -> Graph:
    """The forward graph of a memory, with sums of gates."""
    return with_sums(recurrence_of(spec).chunked.forward, ("H",))


@pytest.mark.parametrize("gates", GATES)
@pytest.mark.parametrize("spec", ["kda", "gla"])
def test_pairs_are_products_of_what_the_walk_reads(spec: str, gates: str) -> None:
    before = forward(spec)
    after = near(before)
    draw = torch.Generator().manual_seed(0)
    sizes = {name: SIZES.get(name, 2 if name == "H" else SMALL) for name in symbols(before)}
    values = {n.op.name: drawn(n, sizes, draw) for n in before if isinstance(n.op, ir.Input)}
    values["log_alpha"] = -values["log_alpha"].abs() * GATES[gates]
    assert (values["log_alpha"].min() < -3 * ck.NEAREST) == (gates == "hard")
    wanted, found = (evaluate_graph(each, values, sizes) for each in (before, after))
    assert [*wanted] == [*found]
    for name, value in wanted.items():
        torch.testing.assert_close(found[name], value, rtol=1e-9, atol=1e-10, msg=name)
    grams = [n for n in after if isinstance(n.op, ck.Gram)]
    assert grams and all(isinstance(n.op, ck.NearGram) for n in grams)


@pytest.mark.parametrize("spec", ["kda", "gla"])
def test_no_sums_are_written_and_rows_are_narrow(spec: str) -> None:
    recurrence = recurrence_of(spec)
    for saved in (True, False):
        graph = recurrence.chunked.forward.copy()
        graph.outputs = {n: id for n, id in graph.outputs.items() if saved or n[:5] != "saved"}
        graph.prune()
        graph = prepared(graph, ("H",))
        plan = partition(graph, spec, recurrence.stream, ("H",), {}, fused=not saved)
        kept = {id: name for kernel in plan.kernels for name, id in kernel.stores.items()}
        assert not any(isinstance(graph[id].op, ck.Sums) for id in kept)
        widths = {buffer.name: buffer.width for buffer in plan.buffers}
        pairs = [n for n in graph if isinstance(n.op, ck.NearGram)]
        assert {widths[kept[o]] for n in pairs for o in n.operands[:2]} == {NARROW}
        states = [name for name in widths if name.startswith("saved.S@")]
        assert saved == bool(states) and {widths[name] for name in states} <= {NARROW}


@pytest.mark.parametrize("saved", [True, False])
def test_a_system_is_solved_where_its_pairs_are_made(saved: bool) -> None:
    """No matrix in float32 goes through memory for it."""
    recurrence = recurrence_of("kda")
    graph = recurrence.chunked.forward.copy()
    graph.outputs = {n: id for n, id in graph.outputs.items() if saved or n[:5] != "saved"}
    graph.prune()
    graph = prepared(graph, ("H",))
    plan = partition(graph, "kda", recurrence.stream, ("H",), {}, fused=not saved)
    (solves,) = (n for n in graph if isinstance(n.op, ck.Inverse))
    made = [kernel for kernel in plan.kernels if solves.id in kernel.stores.values()]
    (pairs,) = (n.id for n in graph if isinstance(n.op, ck.NearGram) and not n.op.strict)
    assert [pairs in kernel.stores.values() for kernel in made] == [True]
    assert not {*solves.operands} & {id for k in plan.kernels for id in k.stores.values()}


@pytest.mark.parametrize("spec", ["kda", "gla"])
def test_a_state_and_what_is_added_are_scaled_at_once(spec: str) -> None:
    """So that products are added to the state where it is."""
    (walk,) = (n for n in near(forward(spec)) if isinstance(n.op, ir.Recurrence))
    (state,) = walk.op.states
    body = walk.op.body
    last = body[body.outputs[state.name]]
    assert last.op == ir.Elementwise("mul")
    assert ir.Elementwise("add") in [body[each].op for each in last.operands]


@pytest.mark.parametrize("spec", ["rwkv7", "retention", "gated_delta"])
def test_other_memories_stay(spec: str) -> None:
    """Of one gate a head, or with gates between rows alone."""
    graph = forward(spec)
    assert with_near_rows(graph) is graph
    assert with_common_decays(graph) is graph


@pytest.mark.parametrize("spec", ["kda", "gla"])
def test_gradients_stay(spec: str) -> None:
    graph = with_sums(recurrence_of(spec).chunked.backward, ("H",))
    assert with_near_rows(graph) is graph
