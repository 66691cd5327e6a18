"""A sum over the tokens read of weights times vectors is a product, and nothing else is."""

from __future__ import annotations

import pytest
import torch

import archc
from archc.algebra.simplify import simplify
from archc.ir import layer as ir
from tests.elaborate.forms import T, randn, same

ONE = """layer L(d):
    input q[d], k[d], v[d]
    attend s <= t:
        p = {p}(q[t].T @ k[s])
        o = sum[s]({x})
    output o"""
MIXED = """layer L(H, K, V):
    input q[H, K], k[H, K], v[H, V]
    param A[H, H']; B[H, H']
    attend s <= t:
        p = softmax(A.T @ sum[K](q[t] * k[s]))
        o = sum[s]((B.T @ p) * v[s])
    output o"""


def summed(text: str) -> list[ir.Op]:
    """What the attends of a layer sum over the tokens read."""
    layer = simplify(archc.parse(text).layer)
    bodies = [node.op.body for node in layer.graph if isinstance(node.op, ir.Attend)]
    return [each.op for body in bodies for each in body if each.op == ir.Reduce("sum", ("s",))]


@pytest.mark.parametrize("p", ["softmax", "tanh"])
@pytest.mark.parametrize("x", ["p * v[s]", "v[s] * p"])
def test_weights_times_vectors_are_multiplied(p: str, x: str) -> None:
    def formula(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        seen, z = torch.ones(T, T).tril() == 1, q @ k.mT
        if p == "softmax":
            return z.masked_fill(~seen, -torch.inf).softmax(-1) @ v
        return torch.where(seen, z.tanh(), 0) @ v

    text, inputs = ONE.format(p=p, x=x), {n: randn(3, seed=i) for i, n in enumerate("qkv")}
    assert not summed(text)
    same(text, inputs, formula, d=3)


@pytest.mark.parametrize("x", ["p * v[t]", "p", "v[s]", "tanh(p * v[s])"])
def test_other_sums_stay(x: str) -> None:
    assert summed(ONE.format(p="tanh", x=x))


def test_weights_of_mixed_heads_are_multiplied() -> None:
    inputs = {"q": randn(2, 3, seed=0), "k": randn(2, 3, seed=1), "v": randn(2, 4, seed=2)}
    layer = archc.parse(MIXED).module(dtype=torch.float64, H=2, K=3, V=4)
    z = torch.einsum("bthk,bshk,hg->bgts", inputs["q"], inputs["k"], layer.A)
    p = z.masked_fill(torch.ones(T, T).triu(1) == 1, -torch.inf).softmax(-1)
    wanted = torch.einsum("bhts,hg,bsgv->btgv", p, layer.B, inputs["v"])
    assert not summed(MIXED)
    torch.testing.assert_close(layer(**inputs), wanted)
