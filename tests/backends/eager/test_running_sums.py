"""Sums along the tokens in modules of 16 bits: angles, counts and log gates, which grow."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

import archc
from archc.ir.running_sums import running_sums

HEAD = """layer Sums(d, H, K):
    input x[d], a[H]
    param W[d, H, K]; W_o[H, K, d]
    q = x @ W
    recurrence n[] over H:
        n[t] = n[t-1] + a
        c = n[t]
"""
TAIL = "    output y[d] = o @ W_o\n"
ASKED = {
    "an angle": "    o = q * sin(c)\n",
    "an angle times a frequency": "    o = q * cos(c * 1.5 + 0.5)\n",
    "a count": "    o = q * where(c - 8 * floor(c / 8) < 4, 1, 0)\n",
    "an earlier one": "    o = q * exp(c[t-1] - c)\n",
    "log gates of scores": """    attend s <= t over H:
        o = softmax(q[t].T @ q[s] - c[t] + c[s]) @ q[s]
""",
}
SIZES, T = {"d": 16, "H": 2, "K": 8}, 700
FAR = 0.03


def spec(name: str) -> Any:
    return archc.parse(HEAD + ASKED[name] + TAIL)


def drawn() -> tuple[Tensor, Tensor]:
    """x, and what is added: multiples of 1/8, which 16 bits hold."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1, T, SIZES["d"], generator=generator)
    a = torch.randint(4, 12, (1, T, SIZES["H"]), generator=generator) / 8
    return x.bfloat16(), a.bfloat16()


def far(made: Tensor, exact: Tensor) -> float:
    return float((made.double() - exact).detach().norm() / exact.detach().norm())


@pytest.mark.parametrize("name", ASKED)
def test_they_are_as_exact_as_what_is_added(name: str) -> None:
    narrow = spec(name).module(**SIZES, backend="eager").bfloat16()
    exact = spec(name).module(**SIZES, backend="eager").double()
    exact.load_state_dict(narrow.state_dict())
    given = [each.requires_grad_() for each in drawn()]
    wide = [each.detach().double().requires_grad_() for each in given]
    y, want = narrow(*given), exact(*wide)
    assert y.dtype == torch.bfloat16
    assert far(y, want) < FAR
    slope = torch.sin(torch.arange(y.numel())).view(y.shape)
    grads = torch.autograd.grad(y, given, slope.bfloat16(), materialize_grads=True)
    wanted = torch.autograd.grad(want, wide, slope.double(), materialize_grads=True)
    for made, each, at in zip(grads, wanted, given, strict=True):
        assert made.dtype == at.dtype
        assert float((made.double() - each).norm()) <= FAR * float(each.norm()) + 1e-6


@pytest.mark.parametrize("name", ASKED)
def test_they_go_on_and_are_packed(name: str) -> None:
    layer = spec(name).module(**SIZES, backend="eager").bfloat16()
    x, a = drawn()
    with torch.no_grad():
        whole = layer(x, a)
        state, pieces = None, []
        for begin, end in ((0, 333), (333, 334), (334, 335), (335, T)):
            part, state = layer(x[:, begin:end], a[:, begin:end], state=state, return_state=True)
            pieces.append(part)
        assert far(torch.cat(pieces, 1), whole.double()) < FAR
        borders = torch.tensor([0, 0, 260, 261, T])
        packed = layer(x, a, cu_seqlens=borders)
        alone = [layer(x[:, i:j], a[:, i:j]) for i, j in pairwise(borders)]
    assert far(packed, torch.cat(alone, 1).double()) < FAR


@pytest.mark.parametrize(
    ("recurrence", "read", "kept"),
    [
        ("n[t] = n[t-1] + a", "sin(c)", True),
        ("n[t] = n[t-1] - 2 * a", "exp(c)", True),
        ("n[t] = where(a > 0, n[t-1] + a, 0)", "floor(c)", True),
        ("n[t] = 0.5 * n[t-1] + a", "sin(c)", False),
        ("n[t] = n[t-1] + a", "(1 / (1 + c))", False),
    ],
)
def test_which_are_kept(recurrence: str, read: str, kept: bool) -> None:
    """Sums that do not decay, where an absolute error counts."""
    text = HEAD.replace("n[t] = n[t-1] + a", recurrence) + f"    o = q * {read}\n" + TAIL
    assert bool(running_sums(archc.parse(text).layer.graph)) == kept
