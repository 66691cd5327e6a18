"""Sums over combined softmaxes are taken apart, and stay what they are."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import archc
from archc.show.attends import attends_of

HEAD = """layer Combined(H, K, V):
    input q[H, K], k[H, K], r[H, K], m[H, K], v[H, V], g[H], b[H]
    attend s <= t over H:
        o = ({}) @ v[s]
    output o
"""
ONE, TWO = "softmax(q[t].T @ k[s])", "softmax(r[t].T @ m[s])"
COMBINED = {
    "a difference": (f"{ONE} - g[t] * {TWO}", 2, lambda p, u, g, b, s: p - g * u),
    "scaled on both sides": (f"g[t] * {ONE} * b[s] / 2", 1, lambda p, u, g, b, s: g * p * b / 2),
    "with weights that are no softmax": (
        f"relu(r[t].T @ m[s]) - {ONE}", 2, lambda p, u, g, b, s: s.relu().tril() - p,
    ),
    "three": (
        f"-({ONE} + b[s] * {TWO}) * g[t] + {TWO} / (1 + t)", 3,
        lambda p, u, g, b, s: -(p + b * u) * g + u / (1 + torch.arange(9.0)[:, None]),
    ),
}  # fmt: skip


def softmax(q: Tensor, k: Tensor) -> Tensor:
    """The weights of all pairs of tokens."""
    score = torch.einsum("bthk,bshk->bhts", q, k)
    later = torch.ones(score.shape[-2:], dtype=torch.bool).triu(1)
    return score.masked_fill(later, -torch.inf).softmax(-1)


@pytest.mark.parametrize("what", COMBINED)
def test_values_and_gradients(what: str) -> None:
    text, sums, combine = COMBINED[what]
    spec = archc.parse(HEAD.format(text))
    shapes = [(2, 9, 2, 4)] * 4 + [(2, 9, 2, 3), (2, 9, 2), (2, 9, 2)]
    generator = torch.Generator().manual_seed(0)
    given = [torch.randn(s, generator=generator).double().requires_grad_() for s in shapes]
    q, k, r, m, v, g, b = given
    scores = torch.einsum("bthk,bshk->bhts", r, m)
    sides = g.transpose(1, 2)[..., None], b.transpose(1, 2)[..., None, :]
    weights = combine(softmax(q, k), softmax(r, m), *sides, scores)
    wanted = torch.einsum("bhts,bshv->bthv", weights, v)
    found = spec.module(H=2, K=4, V=3)(*given)
    torch.testing.assert_close(found, wanted)
    slopes = [torch.autograd.grad(o.sin().sum(), given, allow_unused=True) for o in (found, wanted)]
    torch.testing.assert_close(
        *([torch.zeros(1) if d is None else d for d in made] for made in slopes)
    )
    told = [each.how for each in attends_of(spec.layer)]
    assert len(told) == sums and not any("pairs" in each for each in told), told


def test_what_is_no_sum_of_softmaxes_stays() -> None:
    text = HEAD.format(f"dropout({ONE}, 0.1) + {TWO}")
    told = [each.how for each in attends_of(archc.parse(text).layer)]
    assert any(each.startswith("pairs of some") or "dot_product" in each for each in told), told
