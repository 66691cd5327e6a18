"""Weights divided by their sum are a softmax, and nothing else is."""

from __future__ import annotations

import pytest
import torch

import archc
from archc.algebra.simplify import simplify
from archc.ir import layer as ir
from tests.elaborate.forms import T, randn, same

TEXT = """layer L(d):
    input q[d], k[d], v[d]
    attend s <= t:
        z = q[t].T @ k[s]
        p = {p}
        o = ({w}) @ v[s]
    output o"""


def made(p: str, w: str) -> list[ir.Op]:
    """What the body of the attend does."""
    layer = simplify(archc.parse(TEXT.format(p=p, w=w)).layer)
    return [
        each.op for node in layer.graph if isinstance(node.op, ir.Attend) for each in node.op.body
    ]


@pytest.mark.parametrize("p", ["exp(z)", "exp(z - max[s](z))"])
def test_weights_divided_by_their_sum_are_a_softmax(p: str) -> None:
    ops = made(p, "p / sum[s](p)")
    assert ir.Softmax("s") in ops and not any(isinstance(op, ir.Reduce) for op in ops)


@pytest.mark.parametrize(
    ("p", "w"),
    [
        ("exp(z)", "p / (sum[s](p) + 1)"),
        ("exp(z)", "p / sum[s](2 * p)"),
        ("exp(z)", "p / max[s](p)"),
        ("relu(z)", "p / sum[s](p)"),
    ],
)
def test_other_weights_stay(p: str, w: str) -> None:
    assert ir.Softmax("s") not in made(p, w)


def test_numbers_are_those_of_a_softmax() -> None:
    def formula(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        z = (q @ k.mT).masked_fill(torch.ones(T, T).triu(1) == 1, -torch.inf)
        return z.softmax(-1) @ v

    inputs = {name: randn(3, seed=seed) for seed, name in enumerate("qkv")}
    same(TEXT.format(p="exp(z - max[s](z))", w="p / sum[s](p)"), inputs, formula, d=3)
