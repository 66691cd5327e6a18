"""Sums of products of two states, made by the walk that has one of them at hand."""

from __future__ import annotations

import pytest

from archc.ir import layer as ir
from archc.ir.graph import Graph
from archc.schedule.state_products import with_state_products
from tests.schedule.test_joint_pairs import check_same
from tests.schedule.test_partition import recurrence_of


def whole_sums(graph: Graph) -> list[int]:
    """The products of two matrices of states of which nothing but a number a head is left."""
    pairs = [n for n in graph if isinstance(n.op, ir.Contract) and len(n.operands) == 2]
    return [n.id for n in pairs if len(graph[n.operands[0]].type.axes) - len(n.type.axes) == 2]


@pytest.mark.parametrize(("spec", "count"), [("retention", 1), ("mlstm", 1), ("mesa", 2)])
def test_a_walk_multiplies_its_states_by_saved_ones(spec: str, count: int) -> None:
    """The gradient of one decay a head: the walk sums over one dim, and what follows over the one
    of which programs have a part, which mlstm's vector has too."""
    graph = recurrence_of(spec).chunked.backward
    after = with_state_products(graph)
    assert whole_sums(graph) and not whole_sums(after)
    walks = (n.op for n in after if isinstance(n.op, ir.Recurrence))
    products = {w: [n for n in w.body if isinstance(n.op, ir.Contract)] for w in walks}
    ((walk, made),) = ((w, found) for w, found in products.items() if found)  # not mlstm's shares
    assert [n.type.names[-1] for n in made] == count * [walk.states[0].axes[-2].name]
    check_same(graph, after)


@pytest.mark.parametrize("spec", ["gated_delta", "gla", "linear_attention_simple"])
def test_other_walks_stay(spec: str) -> None:
    """Those that correct rows have no registers left, and other gradients have no such sum."""
    graph = recurrence_of(spec).chunked.backward
    assert with_state_products(graph) is graph
