"""What follows a recurrence's outputs moves into it where that saves traffic."""

from __future__ import annotations

import pytest

import archc
from archc.compile import before_chunks, elaborated, in_chunks, lowered, with_epilogues
from archc.ir import layer as ir
from archc.ir.graph import Node
from archc.schedule.epilogue import considered
from archc.schedule.program import Setting
from archc.show.moved import leaving
from archc.source import Source
from tests.schedule.same import check_same

ENDED = """
layer Ended(d, H, K, V):
    input x[d]
    param W_q, W_k[d, H, K]; W_v[d, H, V]; W_a, W_b[d, H]; W_g[d, H, V]; skip[H]; bias[H, V]
    q = x @ W_q
    k = x @ W_k
    v = x @ W_v
    a = sigmoid(x @ W_a)
    b = x @ W_b
    g = x @ W_g
    recurrence S[K, V] over H:
        S[t] = a * S[t-1] + k @ v.T
        o    = S[t].T @ q
        p    = S[t].T @ k
    {rest}
    output used[H, V] = exp(p + b * skip * g) * bias
"""


def ended(rest: str) -> ir.Layer:
    """A layer with something after its recurrence."""
    return before_chunks(elaborated(Source("ended.arch", ENDED.format(rest=rest))))


def recurrence_of(layer: ir.Layer) -> Node:
    """Its recurrence."""
    (recurrence,) = (node for node in layer.graph if isinstance(node.op, ir.Recurrence))
    return recurrence


def test_a_skip_is_made_by_the_recurrence() -> None:
    op = recurrence_of(with_epilogues(in_chunks(ended("output y[H, V] = o + skip * v")))).op
    assert op.captures == ("log_a", "k", "v", "q", "skip") and [*op.body.outputs] == ["S", "y", "p"]
    assert {"y", "S[T]"} <= {*op.chunked.forward.outputs} and "o" not in op.chunked.forward.outputs
    assert {"d.skip", "d.v"} <= {*op.chunked.backward.outputs}


@pytest.mark.parametrize(
    ("follows", "moved", "rule"),
    [
        ("o + skip * v", 2, "given"),
        ("o / sqrt(K)", 1, "given"),
        ("bias - (o / sqrt(K) - skip * g)", 4, "given"),
        ("g * (o + skip * v)", 2, "needed"),
        ("o * bias", 0, "needed"),
        ("o * o", 0, "needed"),
        ("v + relu(o)", 0, "needed"),
        ("2 * o + x @ W_g", 1, "copied"),
        ("o + b", 0, "sum"),
        ("o + p", 0, "same"),
        ("o + exp(o)", 0, "several"),
        ("rmsnorm[V](o)", 0, "across"),
        ("o", 0, "given"),
    ],
)
def test_what_moves_and_why_no_more(follows: str, moved: int, rule: str) -> None:
    layer = ended(f"output y[H, V] = {follows}")
    found = next(each for each in considered(layer.graph, recurrence_of(layer)))
    assert sum(1 + len(each.beside) for each in found.moves) == moved
    assert found.stop.rule == rule


@pytest.mark.parametrize(
    ("follows", "forward", "backward"),
    [
        # o, v and what `skip * v` is need not be read, nor o and that be written: v is read once
        ("o + skip * v", 4, 6),
        # the gradient of g is written in any case
        ("o + skip * g", 4, 2),
        ("2 * o", 2, 2),
    ],
)
def test_traffic_is_counted(follows: str, forward: int, backward: int) -> None:
    layer = ended(f"output y[H, V] = {follows}")
    found = next(each for each in considered(layer.graph, recurrence_of(layer)))
    assert (found.forward, found.backward) == (forward, backward)


@pytest.mark.parametrize(
    "rest",
    [
        "z = bias - (o / sqrt(K) + skip * v)\n    output y[H, V] = g * z",
        "output y[H, V] = v - o * 3",
    ],
)
def test_the_layer_computes_the_same(rest: str) -> None:
    layer = in_chunks(ended(rest))
    moved = with_epilogues(layer)
    assert moved is not layer
    check_same(layer, moved)


def test_an_output_that_is_a_state_stays_one() -> None:
    layer = lowered(archc.parse(STATES).layer)
    moved = with_epilogues(layer)
    assert [*recurrence_of(moved).op.body.outputs] == ["h", "y"]
    check_same(layer, moved)


STATES = """
layer States(d, D):
    input x[d]
    param W[d, D]; a[D]; skip[D]
    u = x @ W
    recurrence h[D]:
        h[t] = a * h[t-1] + u
    output y = h + skip * u
"""


@pytest.mark.parametrize(
    ("follows", "said"),
    [
        ("g * (o + skip * v)", ", and the 2 kernels that read its gradient would read `g` too"),
        ("g * g * o", ", and the 2 kernels that read its gradient would read `g * g` too"),
        ("o * bias", ""),
        ("2 * o + x @ W_g", ""),
        ("o + b", ""),
        ("o + p", ""),
    ],
)
def test_what_kernels_would_read_is_said_where_a_gradient_needs_it(follows: str, said: str) -> None:
    """Nothing is said of kernels where something else keeps a value from moving."""
    layer = in_chunks(ended(f"output y[H, V] = {follows}"))
    setting = Setting({"d": 8, "H": 2, "K": 4, "V": 4, "T#": 64, "batch": 1})
    found = next(leaving(layer.graph, recurrence_of(layer), setting, lambda _: 2))
    assert found.why.partition(", and the")[2] == said.partition(", and the")[2]
