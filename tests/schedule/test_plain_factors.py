"""Products of rows as they entered, whose scales are applied to something smaller."""

from __future__ import annotations

from dataclasses import replace

import pytest

import archc
from archc.compile import for_kernels, lowered
from archc.ir import chunk as ck
from archc.ir import layer as ir
from archc.ir.graph import Graph, Node
from archc.schedule.partition import partition
from archc.schedule.plain_factors import with_plain_factors
from archc.schedule.quotients import exact_products
from archc.schedule.row_scales import enters
from tests.schedule.same import check_same_form
from tests.schedule.test_delayed_solve import form_of

HEADS = ("H",)


def changed(spec: str) -> tuple[ck.ChunkForm, ck.ChunkForm]:
    """A spec's chunked form before the pass and after it."""
    before = form_of(for_kernels(lowered(archc.load(spec).layer)))
    assert before.backward is not None
    forward, backward = (with_plain_factors(g, HEADS) for g in (before.forward, before.backward))
    return before, replace(before, forward=forward, backward=backward)


def factors(graph: Graph, nodes: list[Node]) -> list[list[bool]]:
    """Of products, whether each factor is as it entered."""
    return sorted([enters(graph, o) for o in node.operands] for node in nodes)


def added(graph: Graph) -> list[Node]:
    """The products that walks add to states."""
    walks = [n for n in graph if isinstance(n.op, ir.Recurrence)]
    given = [graph[o] for walk in walks for o in walk.operands]
    return [n for n in given if isinstance(n.op, ir.Contract) and len(n.type.axes) == 5]


@pytest.mark.parametrize("spec", ["mlstm", "linear_attention", "mamba2"])
def test_the_same_is_computed(spec: str) -> None:
    check_same_form(*changed(spec))


def test_what_is_divided_later_is_a_product_of_what_entered() -> None:
    """d.o is divided, and v is scaled: of three products over V, the one with the state reads d.o
    as it is, and the one of d.o and v is not one that a quotient shows any longer."""
    before, after = changed("mlstm")
    assert before.backward is not None and after.backward is not None
    graphs = before.backward, after.backward
    over = [[graph[id] for id in sorted(exact_products(graph))] for graph in graphs]
    wide = [[n for n in found if len(n.type.axes) == 5] for found in over]
    assert factors(before.backward, wide[0]) == [[False, False], [False, False]]
    assert factors(after.backward, wide[1]) == [[True, False]]


@pytest.mark.parametrize("spec", ["mlstm", "mamba2"])
def test_walks_add_products_of_what_entered_and_one_scale(spec: str) -> None:
    before, after = changed(spec)
    for one, other in ((before.forward, after.forward), (before.backward, after.backward)):
        assert one is not None and other is not None
        assert [True, True] not in factors(one, added(one))
        assert all(True in each for each in factors(other, added(other)))


def test_scaled_rows_are_not_in_memory() -> None:
    """Values, and in the gradient cotangents: keys and queries have the scales of both."""
    found = []
    for form in changed("mlstm"):
        for graph in (form.forward, form.backward):
            assert graph is not None
            stream = next(a for n in graph for a in n.type.axes if a.name == "t")
            made = partition(graph, "memory", stream, HEADS, {})
            names = [{*buffer.type.names} for buffer in made.buffers]
            found.append([each for each in names if {"i", "V"} <= each])
    assert [len(each) for each in found] == [1, 1, 0, 0]


@pytest.mark.parametrize("spec", ["linear_attention_simple", "gla", "kda", "gated_delta", "delta"])
def test_others_stay(spec: str) -> None:
    """Nothing is scaled, or by a number for each channel, or states are read as they are made."""
    form = form_of(for_kernels(lowered(archc.load(spec).layer)))
    assert form.backward is not None
    for graph in (form.forward, form.backward):
        assert with_plain_factors(graph, HEADS) is graph
