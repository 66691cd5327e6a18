"""What pairs of rows add to one value, as one sum over all of them."""

from __future__ import annotations

import pytest
import torch

import archc
from archc.compile import FOR_KERNELS, lowered, prepared
from archc.ir import chunk as ck
from archc.ir import layer as ir
from archc.ir.graph import Graph
from archc.ir.meaning import evaluate_graph
from archc.schedule.gate_sums import with_sums
from archc.schedule.joint_pairs import with_joint_pairs
from archc.schedule.outer import with_sums_of_rows, without_outer_sums
from tests.lowering.launches import SIZES, SMALL, drawn
from tests.schedule.same import symbols


def backward(spec: str) -> Graph:
    """The gradient of a memory as the pass is given it: pairs that decay read sums of gates."""
    layer = lowered(archc.load(spec).layer)
    for _, step in FOR_KERNELS:
        layer = step(layer)
    (recurrence,) = (n.op for n in layer.graph if isinstance(n.op, ir.Recurrence))
    assert recurrence.chunked is not None and recurrence.chunked.backward is not None
    graph = without_outer_sums(recurrence.chunked.backward, recurrence.heads)
    return with_sums(with_sums_of_rows(graph, recurrence.heads), recurrence.heads)


def count(graph: Graph, *kinds: type) -> int:
    return sum(isinstance(node.op, kinds) for node in graph)


CASES = [("kda", 3, 1, 0), ("gla", 2, 1, 0), ("rwkv7", 6, 2, 1)]


@pytest.mark.parametrize(("spec", "mixes", "shares", "entering"), CASES)
def test_gradients_of_pairs_are_one_sum(spec: str, mixes: int, shares: int, entering: int) -> None:
    """One sum for each gradient, one for all gates that decay alike, and the same numbers."""
    before = backward(spec)
    after = with_joint_pairs(before)
    assert not count(after, ck.GateGradient)
    assert count(after, ck.Mix, ck.MixSum) == mixes
    found = [node.op for node in after if isinstance(node.op, ck.GateShares)]
    assert (len(found), sum(op.entering for op in found)) == (shares + entering, entering)
    sums = [n.op for n in after if isinstance(n.op, ck.Sums) and not n.op.gates and n.op.reverse]
    assert len([op for op in sums if not op.exclusive]) == 1
    check_same(before, after)


def check_same(before: Graph, after: Graph) -> None:
    """Two graphs with the same inputs, in float64."""
    draw = torch.Generator().manual_seed(0)
    sizes = {name: SIZES.get(name, 2 if name == "H" else SMALL) for name in symbols(before)}
    values = {n.op.name: drawn(n, sizes, draw) for n in before if isinstance(n.op, ir.Input)}
    wanted, found = (evaluate_graph(each, values, sizes) for each in (before, after))
    assert [*wanted] == [*found]
    for name, value in wanted.items():
        torch.testing.assert_close(found[name], value, rtol=1e-9, atol=1e-10, msg=name)


def test_a_value_that_lies_before_the_walk_is_handed_on_once() -> None:
    """Of what q has of the state, and the same decayed, one is read by later kernels."""
    graph = prepared(backward("kda"), ("H",))
    (walk,) = (node for node in graph if isinstance(node.op, ir.Recurrence))
    late = {node.id for node in graph if walk.id in graph.ancestors(node.id)}
    handed = [
        node for node in graph
        if isinstance(node.op, ir.Contract) and node.id not in late | {walk.id}
        and {*graph.users(node.id)} & late and {"i", "K"} <= {*node.type.names}
    ]  # fmt: skip
    assert handed == []


def test_what_has_no_pairs_stays() -> None:
    graph = backward("gated_delta")
    assert with_joint_pairs(graph) is graph
