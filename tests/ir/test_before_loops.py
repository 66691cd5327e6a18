"""Products of parameters that need no state stand before the loop."""

from __future__ import annotations

import pytest
import torch

import archc
from archc.algebra.simplify import simplify
from archc.ir import layer as ir
from archc.ir.before_loops import made_before
from archc.ir.meaning import evaluate

CELL = """
layer Cell(d, N):
    input x[d], g[d]
    param W[d, N]; U[N, N']; b[N]
    recurrence h[N]:
        h[t] = tanh({product} + U.T @ h[t-1] + b) + sum[d](g)
    output h
"""


def loop_of(layer: ir.Layer) -> ir.Recurrence:
    return next(node.op for node in layer.graph if isinstance(node.op, ir.Recurrence))


@pytest.mark.parametrize(
    "product",
    [
        "W.T @ x",
        "W.T @ (x * sigmoid(g))",
        "(2 * W).T @ x",
        "W.T @ x[t-1]",
        "diag(sigmoid(b)) @ W.T @ x",
    ],
)
def test_products_of_inputs_leave_the_loop(product: str) -> None:
    layer = simplify(archc.parse(CELL.format(product=product)).layer)
    made = made_before(layer)
    assert "W" in loop_of(layer).captures
    assert "W" not in loop_of(made).captures
    assert "U" in loop_of(made).captures
    generator = torch.Generator().manual_seed(0)

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    inputs = {"x": drawn(2, 5, 4), "g": drawn(2, 5, 4)}
    params = {"W": drawn(4, 3), "U": drawn(3, 3), "b": drawn(3)}
    wanted = evaluate(layer, inputs, params, {"d": 4, "N": 3}).outputs["h"]
    found = evaluate(made, inputs, params, {"d": 4, "N": 3}).outputs["h"]
    torch.testing.assert_close(found, wanted)


def test_what_needs_the_state_or_is_no_product_stays() -> None:
    cell = """
layer Cell(N):
    input x[N]
    param W[N, N']; w[N]
    recurrence h[N]:
        h[t] = sigmoid(W.T @ (h[t-1] + x)) * w * x + (w.T @ w) * x
    output h
"""
    layer = simplify(archc.parse(cell).layer)
    assert made_before(layer) is layer


GATES = """
layer Memory(H, K, V):
    input k[H, K], v[H, V], a[H, K], b[H], c[H, V]
    recurrence S[K, V] over H:
        f    = sigmoid(a)
        w    = sigmoid(b)
        S[t] = {decay} + (1 - f) * w * k @ v.T
        o    = S[t].T @ k
    output o
"""


@pytest.mark.parametrize(
    ("decay", "gates"),
    [
        ("(1 - (1 - f) * w) * S[t-1]", 1),
        ("diag(1 - f - w + f * w) @ S[t-1] @ diag((1 - w) * (1 - sigmoid(c)))", 2),
        ("where(b > 0, (1 - f) * (1 - w), 1) * S[t-1]", 1),
        ("(1 - f) * S[t-1]", 0),
        ("S[t-1] * (1 - w * f @ sigmoid(c).T)", 0),
    ],
)
def test_a_gate_that_would_be_multiplied_out_leaves_the_loop(decay: str, gates: int) -> None:
    layer = simplify(archc.parse(GATES.format(decay=decay)).layer)
    made = made_before(layer)
    assert len([n for n in loop_of(made).captures if n.startswith("gate")]) == gates
    generator = torch.Generator().manual_seed(0)
    inputs = {
        name: torch.randn(2, 5, 2, *size, generator=generator, dtype=torch.float64)
        for name, size in {"k": [3], "v": [4], "a": [3], "b": [], "c": [4]}.items()
    }
    sizes = {"H": 2, "K": 3, "V": 4}
    wanted = evaluate(layer, inputs, {}, sizes).outputs["o"]
    torch.testing.assert_close(evaluate(made, inputs, {}, sizes).outputs["o"], wanted)
