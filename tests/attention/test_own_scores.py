"""Scores unlike those of any bundled spec: each compiles to folds as it stands, and is held against
all pairs of tokens in PyTorch, written for it here."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

import archc
from archc.ir import layer as ir
from archc.show.attends import attends_of

Values = Mapping[str, Tensor]
CENTRE = """layer Centre(H, G, K, V):
    input q[H, K], k[G, K], v[G, V], c[H], w[H]
    attend s <= t over H grouped G:
        far = (t - s - c[t]) / (1 + w[t] * w[t])
        o = softmax(softcap(q[t].T @ k[s] / sqrt(K), 5) - far * far / 2) @ v[s]
    output o
"""
STUDENT = """layer Student(H, K, V, nu = 3):
    input q[H, K], k[H, K], v[H, V], f[H]
    attend s <= t over H:
        far = sum[K]((q[t] - k[s]) ** 2)
        p = (1 + far / nu) ** (-(nu + 1) / 2) * exp(sum r in (s, t]: f[r])
        o = p @ v[s] / (sum[s](p) + 1e-3)
    output o
"""
PHASES = """layer Phases(H, K, V):
    input q[H, K], k[H, K], v[H, V], a[H], b[H]
    param share[H] = 0.3
    attend s <= t over H:
        z = q[t].T @ k[s] / sqrt(K)
        turn = sum r in (s, t]: a[r]
        o = softmax(z * cos(turn) + b[s]) @ v[s] - share * softmax(z) @ v[s]
    output o
"""
RINGS = """layer Rings(H, K, V, w = 24, m = 5):
    input q[H, K], k[H, K], v[H, V]
    param table[w, H] = normal(0, 1)
    attend t - w < s <= t over H:
        z = q[t].T @ k[s] / sqrt(K) + table[t - s]
        seen = (t - s) % m == 0 or t - s < m
        o = where(seen, relu(z) ** 2, 0) @ v[s] / sqrt(1 + t)
    output o
"""


def places(x: Values) -> tuple[Tensor, Tensor]:
    """The places of readers, and of tokens read."""
    every = torch.arange(x["q"].shape[1])
    return every[:, None], every


def dots(x: Values) -> Tensor:
    """Products of queries and keys, which a group shares [B, H, t, s]."""
    k = x["k"].repeat_interleave(x["q"].shape[2] // x["k"].shape[2], 2)
    return torch.einsum("bthk,bshk->bhts", x["q"], k) / math.sqrt(k.shape[-1])


def softmax(z: Tensor) -> Tensor:
    """Weights of the tokens up to the reader."""
    return z.masked_fill(torch.ones(z.shape[-2:]).triu(1).bool(), -torch.inf).softmax(-1)


def between(x: Tensor) -> Tensor:
    """The sum of numbers [B, T, H] of the tokens behind s, up to t."""
    total = x.cumsum(1).transpose(1, 2)
    return total[..., :, None] - total[..., None, :]


def centre(x: Values, _: Values) -> Tensor:
    """A bell around a place that the reader names, beside a capped score."""
    (t, s), (c, w) = places(x), (x[n].transpose(1, 2)[..., None] for n in "cw")
    return softmax(5 * torch.tanh(dots(x) / 5) - ((t - s - c) / (1 + w * w)) ** 2 / 2)


def student(x: Values, _: Values) -> Tensor:
    """Student's t of the distance, which gates let fade, divided by its own sum."""
    far = ((x["q"][:, :, None] - x["k"][:, None]) ** 2).sum(-1).movedim(-1, 1)
    p = ((1 + far / 3) ** -2 * between(x["f"]).exp()).tril()
    return p / (p.sum(-1, keepdim=True) + 1e-3)


def phases(x: Values, given: Values) -> Tensor:
    """Products that turn with a phase, less a share of what a plain head sees."""
    z, b = dots(x), x["b"].transpose(1, 2)[..., None, :]
    share = given["share"][:, None, None]
    return softmax(z * torch.cos(between(x["a"])) + b) - share * softmax(z)


def rings(x: Values, given: Values) -> Tensor:
    """Squares of scores with a table, of near tokens and of every fifth of a window."""
    t, s = places(x)
    far = t - s
    seen = (far >= 0) & (far < 24) & ((far % 5 == 0) | (far < 5))
    z = dots(x) + given["table"][far.clamp(0, 23)].movedim(-1, 0)
    return torch.where(seen, torch.relu(z) ** 2, 0) / torch.sqrt(1 + t.double())


SCORES: dict[str, tuple[str, Callable[[Values, Values], Tensor], list[str]]] = {
    "centre": (CENTRE, centre, ["a fold over blocks of `s`, softmax of a score"]),
    "student": (STUDENT, student, ["a fold over blocks of `s`, weights as they are"] * 2),
    "phases": (
        PHASES, phases,
        ["a fold over blocks of `s`, softmax of a score", "scaled_dot_product_attention of torch"],
    ),
    "rings": (RINGS, rings, ["a fold over blocks of `s`, weights as they are"]),
}  # fmt: skip
SIZES: dict[str, Any] = {"H": 4, "K": 8, "V": 6}
T, CUT, BORDERS = 40, 31, [0, 3, 26, 27, 40]


@pytest.mark.parametrize("name", SCORES)
def test_whole_gradients_tokens_and_packed(name: str) -> None:
    text, weights, how = SCORES[name]
    spec, generator = archc.parse(text), torch.Generator().manual_seed(0)
    assert [each.how for each in attends_of(spec.layer)] == how
    sizes: dict[str, Any] = SIZES | ({"G": 2} if name == "centre" else {})
    x = {n.op.name: torch.randn(1, T, *(sizes[a.name] for a in n.type.axes if a.kind == "dim"),
                                generator=generator).double()
         for n in spec.layer.graph if isinstance(n.op, ir.Input)}  # fmt: skip
    x = {n: (-y.abs() / 4 if n == "f" else y).requires_grad_() for n, y in x.items()}
    module = spec.module(**sizes).double()
    given = dict(module.named_parameters())

    def wanted(x: Values) -> Tensor:
        v = x["v"].repeat_interleave(x["q"].shape[2] // x["v"].shape[2], 2)
        return torch.einsum("bhts,bshv->bthv", weights(x, given), v)

    pair, learned = (module(**x), wanted(x)), [*x.values(), *given.values()]
    torch.testing.assert_close(*pair)
    torch.testing.assert_close(*(torch.autograd.grad(o.sin().sum(), learned) for o in pair))
    with torch.no_grad():
        y, state = module(**{n: z[:, :CUT] for n, z in x.items()}, return_state=True)
        made = [y]
        for t in range(CUT, T):
            token = {n: z[:, t : t + 1] for n, z in x.items()}
            y, state = module(**token, state=state, return_state=True)
            made.append(y)
        torch.testing.assert_close(torch.cat(made, 1), pair[1])
        packed = module(**x, cu_seqlens=torch.tensor(BORDERS))
        each = [wanted({n: z[:, i:j] for n, z in x.items()}) for i, j in pairwise(BORDERS)]
        torch.testing.assert_close(packed, torch.cat(each, 1))
