"""Sums over the tokens read whose weights factor: recurrences in their place, held against the
sum over all pairs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import archc
from archc.attention.recurrent import states_of
from archc.compile import lowered
from archc.ir import layer as ir
from archc.ir.meaning import evaluate_graph
from archc.show.attends import attends_of

GATES = "sum r in (s, t]: f[r]"
FACTORS = {
    "a product": ("s <= t", "o = (q[t].T @ k[s] / sqrt(K)) @ v[s]"),
    "a decay": ("s <= t", f"o = (q[t].T @ k[s] * exp({GATES})) @ v[s]"),
    "earlier tokens": ("s < t", f"o = (q[t].T @ k[s] * exp({GATES})) @ v[s]"),
    "gates by channel": (
        "s <= t", "c = exp(sum r in (s, t]: g[r])\n        o = ((q[t] * c).T @ k[s]) @ v[s]",
    ),
    "their sum": ("s < t", "o = sum[K](q[t] * k[s] * exp((sum r in (s, t]: g[r]) / 2)) @ v[s]"),
    "matrices": (
        "s <= t", "P = product r in (s, t]: I - b[r] * u[r] @ u[r].T\n"
        "        o = (k[s].T @ P @ q[t]) @ v[s]",
    ),
    "values as long as keys": ("s <= t", f"o = (q[t].T @ k[s] * exp({GATES})) @ u[s]"),
    "gates, values as long as keys": (
        "s < t", "o = sum[K](q[t] * k[s] * exp(sum r in (s, t]: g[r])) @ u[s]",
    ),
    "matrices, keys that are values": (
        "s <= t", "P = product r in (s, t]: I - b[r] * u[r] @ u[r].T\n"
        "        o = (k[s].T @ P @ q[t]) @ k[s]",
    ),
    "numbers of both": ("s <= t", "o = -(exp(f[t]) * q[t].T @ k[s] * sigmoid(b[s])) @ v[s]"),
    "no product": ("s <= t", f"o = exp(2 * ({GATES})) @ v[s]"),
    "divided by its sum": (
        "s <= t", "p = q[t].T @ k[s]\n        o = p @ v[s] / (1 + abs(sum[s](p)))",
    ),
}  # fmt: skip
FOLDS = {
    "a softmax": ("s <= t", "o = softmax(q[t].T @ k[s]) @ v[s]"),
    "a score that is bent": ("s <= t", "o = relu(q[t].T @ k[s]) @ v[s]"),
    "a window": ("t - 5 < s <= t", "o = (q[t].T @ k[s]) @ v[s]"),
    "a sum of weights": ("s <= t", f"o = (q[t].T @ k[s] + exp({GATES})) @ v[s]"),
    "all tokens": ("all s", "o = (q[t].T @ k[s]) @ v[s]"),
    "positions": ("s <= t", "o = (q[t].T @ k[s] * (t - s)) @ v[s]"),
}
T = 21
SIZES: dict[str, Any] = {"H": 2, "K": 4, "V": 3}


def spec(range: str, lines: str) -> archc.Spec:
    """A layer that is one attend."""
    return archc.parse(
        "layer Summed(H, K, V):\n"
        "    input q[H, K], k[H, K], v[H, V], g[H, K], f[H], u[H, K], b[H]\n"
        f"    attend {range} over H:\n        {lines}\n    output o\n"
    )


def given(found: archc.Spec) -> dict[str, Tensor]:
    """What enters; logarithms of gates are below 0."""
    shapes = {n.op.name: [SIZES[a.name] for a in n.type.axes if a.kind == "dim"]
              for n in found.layer.graph if isinstance(n.op, ir.Input)}  # fmt: skip
    generator = torch.Generator().manual_seed(0)
    drawn = {n: torch.randn(2, T, *s, generator=generator).double() for n, s in shapes.items()}
    signs = {"g": -1.0, "f": -1.0}
    drawn |= {n: sign * drawn[n].abs() for n, sign in signs.items() if n in drawn}
    return {name: x.requires_grad_() for name, x in drawn.items()}


@pytest.mark.parametrize("name", FACTORS)
def test_weights_that_factor(name: str) -> None:
    """Values, gradients and tokens one by one are those of the sum; what is kept is a state."""
    found = spec(*FACTORS[name])
    graph = lowered(found.layer).graph
    assert not graph.ids(ir.Attend) and len(graph.ids(ir.Recurrence)) == 1
    module, inputs = found.module(**SIZES).double(), given(found)
    known = {"T#": T, "T_seen#": T, "batch": 2, **SIZES}
    wanted = evaluate_graph(found.layer.graph, inputs, known)["o"]
    made, d = module(**inputs), torch.linspace(-1, 1, wanted.numel()).double().view(wanted.shape)
    assert (made - wanted).norm() < 1e-13 * wanted.norm()
    slopes = [torch.autograd.grad(x, [*inputs.values()], d, allow_unused=True)
              for x in (made, wanted)]  # fmt: skip
    for x, y in zip(*slopes, strict=True):
        assert (x is None) == (y is None)
        assert x is None or y is None or (x - y).norm() <= 1e-12 * y.norm()
    with torch.no_grad():
        y, state = module(**{n: x[:, :9] for n, x in inputs.items()}, return_state=True)
        assert not any(x.shape[1] == 9 for x in state if isinstance(x, Tensor))
        for t in range(9, T):
            token = {n: x[:, t : t + 1] for n, x in inputs.items()}
            y, state = module(**token, state=state, return_state=True)
        assert (y - wanted[:, -1:]).norm() < 1e-12 * wanted[:, -1:].norm()


def test_the_plan_says_so() -> None:
    told, *rest = attends_of(spec(*FACTORS["gates by channel"]).layer)
    assert not rest and told.how.startswith("a recurrence: its weights are products of")
    assert told.name == "o" and dict(told.more) == {"state": "S_o[H, K, V]"}


@pytest.mark.parametrize("name", FOLDS)
def test_what_stays_a_fold(name: str) -> None:
    (node,) = (n for n in spec(*FOLDS[name]).layer.graph if isinstance(n.op, ir.Attend))
    assert not states_of(node)
    assert lowered(spec(*FOLDS[name]).layer).graph.ids(ir.Attend)
