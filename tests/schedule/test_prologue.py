"""What a recurrence's inputs are made of moves into it."""

from __future__ import annotations

import archc
from archc.compile import elaborated, lowered, with_prologues
from archc.ir import layer as ir
from archc.ir.graph import Node
from archc.schedule.prologue import considered
from archc.source import Source
from tests.schedule.same import check_same

GATED = """
layer Gated(d, H, K, V):
    input x[d]
    param W_q, W_k[d, H, K]; W_v[d, H, V]; W_a[d, {of}]; b[{of}]; A[H]
    q = x @ W_q
    k = l2norm[K](x @ W_k)
    v = x @ W_v
    f = x @ W_a
    alpha = exp(-exp(A) * softplus(f + b))
    recurrence S[K, V] over H:
        S[t] = {alpha} S[t-1] + k @ v.T
        o    = S[t].T @ q
    output y[H, V] = o * {gate}
"""


def gated(gate: str = "2", of: str = "H", alpha: str = "alpha *") -> ir.Layer:
    """A layer whose gates are a chain of elementwise ops."""
    text = GATED.format(gate=gate, of=of, alpha=alpha)
    return lowered(elaborated(Source("gated.arch", text)))


def recurrence_of(layer: ir.Layer) -> Node:
    """Its recurrence."""
    (recurrence,) = (node for node in layer.graph if isinstance(node.op, ir.Recurrence))
    return recurrence


def test_gates_are_made_by_the_recurrence() -> None:
    op = recurrence_of(with_prologues(gated())).op
    assert "f" in op.captures and "b" in op.captures and "log_alpha" not in op.captures
    given = {n.op.name for n in op.chunked.forward if isinstance(n.op, ir.Input)}
    assert {"f", "b", "A"} <= given
    assert {"d.f", "d.b", "d.A"} <= set(op.chunked.backward.outputs)


def test_what_parameters_make_is_made_again_by_heads_alone() -> None:
    """-exp(A_log) of each head; that of each channel is made once."""
    op = recurrence_of(with_prologues(lowered(archc.load("mamba").layer))).op
    assert "a_of_A_log" in op.captures and "A_log" not in op.captures


def test_every_input_has_its_reason() -> None:
    layer = gated()
    rules = {each.capture: each.rule for each in considered(layer.graph, recurrence_of(layer))}
    assert rules == {"log_alpha": "moves", "k": "several", "v": "given", "q": "given"}


def test_special_functions_of_every_channel_stay() -> None:
    layer = gated(of="H, K", alpha="diag(alpha) @")
    rules = {each.capture: each.rule for each in considered(layer.graph, recurrence_of(layer))}
    assert rules["log_alpha"] == "costly"


def test_what_others_read_stays() -> None:
    """A gate that is an output of the layer, or part of one, is not made twice."""
    layer = gated("alpha * log(alpha)")
    rules = {each.capture: each.rule for each in considered(layer.graph, recurrence_of(layer))}
    assert rules["log_alpha"] != "moves"


def test_the_layer_computes_the_same() -> None:
    layer = lowered(archc.load("gated_delta").layer)
    check_same(layer, with_prologues(layer))
