"""What a row and a column are beside a square matrix, by hand-written loops in torch."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import archc

Update = Callable[[Tensor, Tensor, Tensor], Tensor]

UPDATES: dict[str, Update] = {
    "S[t-1] * sigmoid(k).T + k @ v.T": lambda S, k, v: S * k.sigmoid().mT + k @ v.mT,
    "S[t-1] * sigmoid(k) + k @ v.T": lambda S, k, v: S * k.sigmoid() + k @ v.mT,
    "sigmoid(v.T) * S[t-1] * sigmoid(k) + k @ v.T": lambda S, k, v: (
        v.sigmoid().mT * S * k.sigmoid() + k @ v.mT
    ),
    "where(k.T > 0, S[t-1], 0) + k @ v.T": lambda S, k, v: torch.where(k.mT > 0, S, 0) + k @ v.mT,
    "S[t-1] / (1 + exp(k * v).T) + k @ v.T": lambda S, k, v: S / (1 + (k * v).exp()).mT + k @ v.mT,
    "(S[t-1] * sigmoid(v).T).T + k @ v.T": lambda S, k, v: (S * v.sigmoid().mT).mT + k @ v.mT,
    "S[t-1] / (1 + sum[K'](S[t-1] * S[t-1])).T + k @ v.T": lambda S, k, v: (
        S / (1 + S.pow(2).sum(-1, keepdim=True)).mT + k @ v.mT
    ),
}
"""What each update makes of the matrix S and of columns k and v."""


@pytest.mark.filterwarnings("ignore::archc.ArchWarning")
@pytest.mark.parametrize("written", UPDATES)
def test_a_row_is_along_the_columns_of_a_square_matrix(written: str) -> None:
    """`k.T` beside S[K, K'] is a number for each column: its name alone would make it a column."""
    spec = archc.parse(
        "layer L(H, K):\n    input q[H, K], k[H, K], v[H, K]\n    recurrence S[K, K'] over H:\n"
        f"        S[t] = {written}\n        o = S[t].T @ q\n    output o\n"
    )
    q, k, v = torch.randn(3, 2, 5, 2, 3, dtype=torch.float64)
    state, rows = torch.zeros(2, 2, 3, 3, dtype=torch.float64), []
    for t in range(5):
        state = UPDATES[written](state, k[:, t, ..., None], v[:, t, ..., None])
        rows.append(torch.einsum("bhkv,bhk->bhv", state, q[:, t]))
    found = spec.module(dtype=torch.float64, H=2, K=3)(q, k, v)
    torch.testing.assert_close(found, torch.stack(rows, 1))


@pytest.mark.parametrize("written", ["(M * k) @ S[t-1]", "M * S[t-1]", "S[t-1] * sigmoid(M)"])
def test_what_a_matrix_with_columns_first_meets_is_refused(written: str) -> None:
    """By names M[K', K] has k along its columns, as a column k is along the rows."""
    with pytest.raises(archc.ArchError, match=r"rows first: declare it `\[K, K'\]`"):
        archc.parse(
            "layer L(H, K):\n    input k[H, K]\n    param M[K', K]\n"
            "    recurrence S[K, K'] over H:\n"
            f"        S[t] = {written} + k @ k.T\n        o = S[t].T @ k\n    output o\n"
        )
