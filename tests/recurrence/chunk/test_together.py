"""The micro-steps of a token as one value along the axis that counts them, where there is one."""

from __future__ import annotations

import pytest

import archc
from archc.compile import before_chunks
from archc.ir import chunk as ck
from archc.ir import layer as ir
from archc.ir.graph import Graph
from archc.recurrence.chunk.chunked import studies
from tests.recurrence.forms import both, furthest

SPEC = """
layer Steps(H, K = 4, V = 3, n = 2, m = 2):
    input q[H, K], k[m, H, K], v[m, H, V], beta[m, H]
    {require}
    recurrence S[K, V] over H:
        R = S[t-1]
        repeat n as j:
            R = (I - beta[{j}] * k[j] @ k[j].T) @ R + {write} * k[j] @ v[j].T
        S[t] = R
        o    = S[t].T @ q
    output o
"""


def form(require: str = "", j: str = "j", write: str = "beta[j]") -> Graph:
    """The chunked form, which is the loop over the tokens."""
    text = SPEC.format(require=require, j=j, write=write)
    made = before_chunks(archc.parse(text).layer)
    ((_, node, found),) = studies(made)
    assert found.graph is not None
    step, chunks = both(made.graph, node, found.graph, 7, 4)
    assert furthest(step, chunks) < 1e-10
    return found.graph


def steps(graph: Graph) -> set[str | None]:
    return {node.op.steps for node in graph if isinstance(node.op, ck.Chunks)}


def gathers(graph: Graph) -> int:
    return sum(isinstance(node.op, ir.Gather) for node in graph)


def test_steps_that_are_made_alike_are_one_value() -> None:
    """k, v and beta: only what is at one step of a token has a place of its own."""
    ((_, _, found),) = studies(before_chunks(archc.load("gated_delta_product").layer))
    assert found.graph is not None and not gathers(found.graph)
    assert steps(found.graph) == {"n", "step"}
    placed = [node.operands[0] for node in found.graph if isinstance(node.op, ck.Place)]
    assert sorted(found.graph[id].op.name for id in placed) == ["log_alpha", "q"]


@pytest.mark.parametrize(
    ("require", "j", "write"),
    [
        ("", "j", "beta[j]"),  # nothing says how long `m` is: it may have more entries
        ("require m == 2", "1 - j", "beta[j]"),  # in another order
    ],
)
def test_others_are_taken_apart(require: str, j: str, write: str) -> None:
    assert gathers(form(require, j, write))


def test_a_value_that_all_steps_share_is_no_step() -> None:
    assert not gathers(form("require m == 2", write="0.5"))
