"""Stabilisers that are proved not to matter, and those that do matter.

Every answer is checked on numbers: m[t] is moved by a random amount at every token, and the results
stay as they were exactly where that was proved.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from archc.dims import TIME
from archc.ir import layer as ir
from archc.ir.graph import Type
from archc.ir.initial import sample_layer
from archc.ir.meaning import evaluate
from archc.recurrence.analysis.gauge import proved
from tests.elaborate.specs import layer
from tests.graphs import axis

HEAD = "layer L(d, H, K, V):\n    input k[H, K], q[H, K], v[H, V], li[H], lf[H], a[H, K], b[K]\n"
MATRIX = """
    recurrence C[K, V], n[K], m[] = -inf over H:
        m[t] = max(lf + m[t-1], li)
        i = exp(li - m[t])
        f = exp(lf + m[t-1] - m[t])
        C[t] = f * C[t-1] + i * k @ v.T
        n[t] = f * n[t-1] + i * k
        o = {}
    output y = o
"""
CELL = """
    recurrence h[K], c[K], n[K], m[K] = -inf over H:
        e = a + {} * h[t-1]
        m[t] = max(e + m[t-1], k)
        i = exp(k - m[t])
        f = exp(e + m[t-1] - m[t])
        c[t] = f * c[t-1] + i * tanh(q + h[t-1])
        n[t] = f * n[t-1] + i
        h[t] = {}
    output h
"""

GAUGES = [
    MATRIX.format("C[t].T @ q / max(abs(n[t].T @ q), exp(-m[t]))"),
    MATRIX.format("C[t].T @ q / sqrt((n[t].T @ q) ** 2 + 2 * exp(-2 * m[t]))"),
    MATRIX.format("v * where(n[t].T @ q >= exp(-m[t]), 1, 2)"),
    MATRIX.format("v * log(sum[K](exp(m[t] - li) * exp(li) * abs(n[t])))"),
    MATRIX.format("v * (m[t] - 2 * m[t] + (m[t] / 4) * 4)"),
    MATRIX.format("v * (sum[K](relu(n[t])) / mean[K](abs(n[t])))"),
    CELL.format("b", "c[t] / n[t]"),
    CELL.format("b", "(c[t] + n[t]) / max(max(n[t], -n[t]), 0)"),
]
NO_GAUGES = [
    MATRIX.format("C[t].T @ q / max(abs(n[t].T @ q), 1)"),
    MATRIX.format("C[t].T @ q / (n[t].T @ q + 1)"),
    MATRIX.format("C[t].T @ q"),
    MATRIX.format("v * m[t]"),
    MATRIX.format("v * (m[t] - m[t-1])"),
    MATRIX.format("v * sigmoid(m[t])"),
    CELL.format("b", "c[t]"),
    CELL.format("b", "c[t] / sum[K](n[t])"),
    CELL.format("exp(m[t-1])", "c[t] / n[t]"),
]


def recurrence_of(model: ir.Layer) -> ir.Recurrence:
    return next(node.op for node in model.graph if isinstance(node.op, ir.Recurrence))


def moved(model: ir.Layer) -> ir.Layer:
    """The layer with `delta`, a further input, added to m[t] at every token."""
    graph = model.graph.copy()
    node = next(node for node in graph if isinstance(node.op, ir.Recurrence))
    own = next(state for state in node.op.states if state.name == "m")
    outer = Type((own.axes[0], axis("t"), *own.axes[1:]))
    delta = graph.add(ir.Input("delta", outer), name="delta")
    body = node.op.body.copy()
    old = body.outputs["m"]
    given = body.add(ir.Input("delta", Type(own.axes)), name="delta")
    users, new = body.users(old), body.add(ir.Elementwise("add"), old, given)
    assert users
    body.substitute(old, new)
    split = len(node.op.captures)
    op = replace(node.op, captures=(*node.op.captures, "delta"), body=body)
    graph.substitute(node.id, graph.add(op, *node.operands[:split], delta, *node.operands[split:]))
    graph.prune([n.id for n in graph if isinstance(n.op, ir.Input | ir.Param)])
    return replace(model, graph=graph)


def stays(model: ir.Layer) -> bool:
    """Whether the output stays the same if m is moved."""
    sizes = {"d": 4, "H": 2, "K": 3, "V": 2}
    torch.manual_seed(0)
    shapes = {
        op.name: [{"batch": 2, TIME.size.name: 5, **sizes}[str(a.size)] for a in op.type.axes]
        for _, op in moved(model).inputs
    }
    inputs = {name: torch.randn(shape, dtype=torch.float64) for name, shape in shapes.items()}
    params = sample_layer(model, sizes, 0)
    after = evaluate(moved(model), inputs, params, sizes).outputs
    inputs["delta"] = torch.zeros_like(inputs["delta"])
    (plain,) = evaluate(moved(model), inputs, params, sizes).outputs.values()
    (other,) = after.values()
    return torch.allclose(other, plain, rtol=1e-8, equal_nan=True)


@pytest.mark.parametrize("text", GAUGES)
def test_what_is_proved_holds(text: str) -> None:
    model = layer(HEAD + text)
    found = proved(recurrence_of(model), "m")
    assert found is not None
    assert stays(model)


@pytest.mark.parametrize("text", NO_GAUGES)
def test_what_matters_is_not_proved(text: str) -> None:
    model = layer(HEAD + text)
    assert not stays(model)
    assert proved(recurrence_of(model), "m") is None


def test_the_proof_in_words() -> None:
    found = proved(recurrence_of(layer(HEAD + GAUGES[0])), "m")
    assert found is not None
    assert found.lines() == (
        "m[t] -> m[t] + delta[t]",
        "C[t] -> C[t] * exp(-delta[t])",
        "n[t] -> n[t] * exp(-delta[t])",
    )
    cell = proved(recurrence_of(layer(HEAD + GAUGES[-2])), "m")
    assert cell is not None
    assert [name for name, _ in cell.states] == ["h", "c", "n"]
    assert str(dict(cell.states)["h"]) == "unchanged"


def test_a_result_that_shows_the_gauge() -> None:
    recurrence = recurrence_of(layer(HEAD + GAUGES[0]))
    assert proved(recurrence, "m", ["o"]) is not None
    assert proved(recurrence, "m", ["o", "C"]) is None
    assert proved(recurrence, "m", ["m"]) is None
    assert proved(recurrence, "n") is None
