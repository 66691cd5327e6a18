"""Sums of gates that are in memory for pairs of rows, read by what else is made of gates."""

from __future__ import annotations

import pytest

from archc.ir import chunk as ck
from archc.ir import layer as ir
from archc.ir.graph import Graph, Node
from archc.schedule.gate_sums import with_sums
from tests.schedule.test_joint_pairs import check_same
from tests.schedule.test_partition import OWN, recurrence_of


@pytest.mark.parametrize("spec", ["kda", "gla", "rwkv7", "retention", "gated_delta", "mamba2"])
def test_one_running_sum_of_gates_is_all_that_a_memory_needs(spec: str) -> None:
    """Decays from the start of a chunk read it, and decays to its end what is left of it."""
    recurrence = recurrence_of(spec)
    for graph in (recurrence.chunked.forward, recurrence.chunked.backward):
        after = with_sums(graph, recurrence.heads)
        sums = [n for n in after if isinstance(n.op, ck.Sums) and _is_of_inputs(after, n)]
        assert [n.op.gates for n in sums] == [True]
        assert [n.operands[0] for n in after if isinstance(n.op, ck.Rest)] == [sums[0].id]
        check_same(graph, after)


def _is_of_inputs(graph: Graph, node: Node) -> bool:
    """Whether a node is made of inputs alone, and of no gradient."""
    given = (graph[id].op for id in graph.ancestors(node.id))
    return not any(isinstance(op, ir.Input) and op.name.startswith("d.") for op in given)


def test_weights_with_a_dim_of_their_own_have_gates() -> None:
    """What was read at each of several keys, forgotten by channels: a kernel of pairs takes a
    matrix of rows alone, and its gradient did not compile."""
    graph = recurrence_of(str(OWN / "several_keys_of_channels.arch")).chunked.backward
    after = with_sums(graph, ("H",))
    mixed = [node for node in after if isinstance(node.op, ck.Mix)]
    own = [node for node in mixed if "R" in after[node.operands[0]].type.names]
    assert own and {node.op.anchor for node in own} == {"halves"}
