"""What turns states enters a recurrence as its angle, what is written to one as its factors, and
nothing else does."""

from __future__ import annotations

import pytest
import torch

import archc
from archc.algebra.simplify import simplify
from archc.ir import layer as ir
from archc.ir.meaning import evaluate
from archc.numerics.factors import parts_in_loops

HEAD = """
layer L(N):
    input x[N], th[N], a[N]
    {before}
    recurrence h[N], g[N]:
        {first}
        g[t] = 0.9 * g[t-1] + h[t-1]
    output h
"""


def loop_of(layer: ir.Layer) -> ir.Recurrence:
    return next(node.op for node in layer.graph if isinstance(node.op, ir.Recurrence))


@pytest.mark.parametrize(
    ("before", "first", "enters"),
    [
        ("c = cos(th)", "h[t] = c * h[t-1] + x", {"th", "x"}),
        ("c = sigmoid(a) * cos(th)", "h[t] = c * h[t-1] - sin(th) * g[t-1] + x", {"th", "x"}),
        ("c = -sin(th) / 2", "h[t] = (a * c) * h[t-1] + x", {"th", "x", "a"}),
    ],
)
def test_angles_enter(before: str, first: str, enters: set[str]) -> None:
    layer = simplify(archc.parse(HEAD.format(before=before, first=first)).layer)
    made = parts_in_loops(layer)
    assert made is not layer
    assert "c" not in loop_of(made).captures
    assert enters <= {*loop_of(made).captures}
    generator = torch.Generator().manual_seed(0)
    inputs = {
        name: torch.randn(2, 5, 3, generator=generator, dtype=torch.float64) for name in "xa"
    } | {"th": torch.linspace(-1, 1, 30, dtype=torch.float64).view(2, 5, 3)}
    inputs = {name: inputs[name] for name in (each.name for _, each in layer.inputs)}
    wanted = evaluate(layer, inputs, {}, {"N": 3}).outputs["h"]
    torch.testing.assert_close(evaluate(made, inputs, {}, {"N": 3}).outputs["h"], wanted)


@pytest.mark.parametrize(
    ("before", "first"),
    [
        ("c = cos(th)", "h[t] = a * h[t-1] + c * x"),
        ("c = exp(cos(th))", "h[t] = c * h[t-1] + a * x"),
        ("c = cos(th)", "h[t] = tanh(h[t-1] + c) + a * x"),
    ],
)
def test_what_turns_nothing_stays(before: str, first: str) -> None:
    layer = simplify(archc.parse(HEAD.format(before=before, first=first)).layer)
    assert parts_in_loops(layer) is layer


MEMORY = """
layer L(H, K, V):
    input q[H, K], k[H, K], v[H, V], a[H]
    {before}
    recurrence S[K, V] over H:
        {first}
        o = {read}
    output {result}
"""


@pytest.mark.parametrize(
    ("before", "first"),
    [
        ("w = k * v", "S[t] = sigmoid(a) * S[t-1] + w"),
        ("w = sigmoid(a) * k * v / 2", "S[t] = S[t-1] + w"),
        ("w = -(k * (v * a))", "S[t] = where(a > 0, S[t-1] + w, S[t-1])"),
    ],
)
def test_outer_products_enter_as_factors(before: str, first: str) -> None:
    text = MEMORY.format(before=before, first=first, read="S[t].T @ q", result="o")
    layer = simplify(archc.parse(text).layer)
    made = parts_in_loops(layer)
    assert "w" in loop_of(layer).captures
    assert "w" not in loop_of(made).captures
    generator = torch.Generator().manual_seed(0)
    inputs = {
        name: torch.randn(2, 5, 2, *size, generator=generator, dtype=torch.float64)
        for name, size in {"q": [3], "k": [3], "v": [4], "a": []}.items()
    }
    sizes = {"H": 2, "K": 3, "V": 4}
    wanted = evaluate(layer, inputs, {}, sizes).outputs["o"]
    torch.testing.assert_close(evaluate(made, inputs, {}, sizes).outputs["o"], wanted)


@pytest.mark.parametrize(
    ("read", "result"),
    [("S[t].T @ q", "o; output S"), ("tanh(S[t]).T @ q", "o"), ("S[t] * sum[K](q)", "o")],
)
def test_of_a_state_that_is_used_whole_an_outer_product_stays(read: str, result: str) -> None:
    text = MEMORY.format(
        before="w = k * v", first="S[t] = sigmoid(a) * S[t-1] + w", read=read, result=result
    )
    layer = simplify(archc.parse(text).layer)
    assert parts_in_loops(layer) is layer
