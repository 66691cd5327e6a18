"""Addends that are 0 and have a gradient are in no kernel."""

from __future__ import annotations

import pytest

from archc.ir import layer as ir
from archc.ir.graph import Node
from archc.schedule.rises import without_rises
from tests.schedule.test_joint_pairs import check_same
from tests.schedule.test_partition import recurrence_of


def test_a_stabiliser_needs_no_pass_over_all_tokens() -> None:
    """The largest of all tokens is for gradients; the values and the final state are the same."""
    graph = recurrence_of("mlstm").chunked.forward
    after = without_rises(graph)
    check_same(graph, after)
    assert any(map(_looks_at_every_token, graph)) and not any(map(_looks_at_every_token, after))


def _looks_at_every_token(node: Node) -> bool:
    """Whether a value is a sum or the largest of all tokens."""
    return isinstance(node.op, ir.Reduce) and "t" in node.op.axes


@pytest.mark.parametrize("spec", ["kda", "retention"])
def test_other_sums_stay(spec: str) -> None:
    graph = recurrence_of(spec).chunked.forward
    assert without_rises(graph) is graph
