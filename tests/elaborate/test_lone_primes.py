"""What a function over one dim of a square matrix makes, beside that matrix, against torch."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn.functional import layer_norm, normalize

import archc

CASES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "x @ l2norm[K](W, 0)": lambda x, w: x @ normalize(w, dim=0),
    "x @ l2norm[K'](W, 0)": lambda x, w: x @ normalize(w, dim=1),
    "x @ layernorm[K](W)": lambda x, w: x @ layer_norm(w.T, (3,)).T,
    "x @ softmax[K](W)": lambda x, w: x @ w.softmax(0),
    "x @ (W - logsumexp[K](W))": lambda x, w: x @ w.log_softmax(0),
    "x @ (W * rsqrt(sum[K](W * W) + 1))": lambda x, w: x @ (w / ((w * w).sum(0) + 1).sqrt()),
    "x @ (exp(max[K](W)) * W)": lambda x, w: x @ (w.max(0).values.exp() * w),
    "x * exp(sum[K](W))": lambda x, w: x * w.sum(0).exp(),
    "x + logsumexp[K](W)": lambda x, w: x + w.logsumexp(0),
    "x * sum[K](exp(sum[K](W)))": lambda x, w: x * w.sum(0).exp().sum(),
    "x * softmax[K](exp(sum[K](W)))": lambda x, w: x * w.sum(0).exp().softmax(0),
}
"""The meaning of each expression in x[K] and W[K, K']."""


@pytest.mark.parametrize("written", CASES)
def test_a_lone_prime_meets_the_matrix_that_it_is_from(written: str) -> None:
    """`K'` is K by itself or beside a value with K, not beside a matrix that has both."""
    text = f"layer L(K):\n    input x[K]\n    param W[K, K']\n    output y[K] = {written}\n"
    module = archc.parse(text).module(dtype=torch.float64, K=3)
    x = torch.randn(2, 5, 3, dtype=torch.float64)
    (w,) = module.parameters()
    torch.testing.assert_close(module(x), CASES[written](x, w))


@pytest.mark.parametrize(("axis", "dim"), [("K", -2), ("K'", -1)])
def test_norms_of_square_states(axis: str, dim: int) -> None:
    spec = archc.parse(
        "layer L(H, K):\n    input a[H, K], b[H, K]\n    recurrence S[K, K'] over H:\n"
        f"        S[t] = softmax[{axis}](S[t-1]) + l2norm[{axis}](S[t-1], 1) + a @ b.T\n"
        f"        o = layernorm[{axis}](S[t]).T @ b\n    output o\n"
    )
    a, b = torch.randn(2, 2, 5, 2, 3, dtype=torch.float64)
    state, rows = torch.zeros(2, 2, 3, 3, dtype=torch.float64), []
    for t in range(5):
        normed = state / (state.pow(2).sum(dim, keepdim=True) + 1).sqrt()
        state = state.softmax(dim) + normed + a[:, t, :, :, None] * b[:, t, :, None]
        read = layer_norm(state.transpose(dim, -1), (3,)).transpose(dim, -1)
        rows.append(torch.einsum("bhkv,bhk->bhv", read, b[:, t]))
    found = spec.module(dtype=torch.float64, H=2, K=3)(a, b)
    torch.testing.assert_close(found, torch.stack(rows, 1))


@pytest.mark.parametrize("more", ["", "    n = m + 1\n"])
def test_numbers_of_columns_under_a_name_are_not_taken_for_rows(more: str) -> None:
    """`m` is along K, as every value that has a name, and was made for each column."""
    text = f"layer L(K):\n    input x[K]\n    param W[K, K']\n    m = sum[K](W * W)\n{more}"
    name = "n" if more else "m"
    with pytest.raises(archc.ArchError, match="for columns, write the sum over `K` in this"):
        archc.parse(f"{text}    output y[K] = x @ (W / {name})\n")
    module = archc.parse(f"{text}    output y[K] = x * {name}\n").module(dtype=torch.float64, K=3)
    x, (w,) = torch.randn(2, 5, 3, dtype=torch.float64), module.parameters()
    torch.testing.assert_close(module(x), x * ((w * w).sum(0) + bool(more)))
