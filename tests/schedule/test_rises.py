"""Addends that are 0 and have a gradient are in no kernel."""

from __future__ import annotations

import pytest

from archc.ir import layer as ir
from archc.ir.graph import Graph
from archc.schedule.rises import without_rises
from tests.schedule.test_joint_pairs import check_same
from tests.schedule.test_partition import recurrence_of


def test_the_rise_of_a_stabiliser_is_not_walked() -> None:
    """What a final state rises by is for gradients; the values and the final state are the same."""
    graph = recurrence_of("mlstm").chunked.forward
    after = without_rises(graph)
    check_same(graph, after)
    assert (_walks(graph), _walks(after)) == (3, 2)


def _walks(graph: Graph) -> int:
    return sum(isinstance(node.op, ir.Recurrence) for node in graph)


def test_a_gradient_of_a_stabilised_memory_leaves_nothing_long_to_pytorch() -> None:
    """No sum or maximum over all tokens, but of what is one number a chunk."""
    graph = recurrence_of("mlstm").chunked.backward
    over = [node for node in graph if isinstance(node.op, ir.Reduce) and "t" in node.op.axes]
    assert [graph.outputs.get("d.m[0]") in graph.descendants(node.id) for node in over] == [True]


@pytest.mark.parametrize("spec", ["kda", "retention"])
def test_other_sums_stay(spec: str) -> None:
    graph = recurrence_of(spec).chunked.forward
    assert without_rises(graph) is graph
