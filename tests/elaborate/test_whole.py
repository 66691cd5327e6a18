"""Whole numbers and matrices made of indices."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from archc.ir import layer as ir
from tests.elaborate import forms
from tests.elaborate.forms import randn
from tests.elaborate.specs import codes, layer, refusal

HALVES = """layer Halves(K, H = 3, P = K / 2):
    require {condition}
    input x[K]
    param b[H] = 0
    output y = take[K](x, {place}) + sum[H](b)
"""


@pytest.mark.parametrize(
    ("condition", "place"),
    [
        ("K % 2 == 0", "(index[K] + K / 2) % K"),
        ("K == 2 * H", "(index[K] + K / 2) % K"),
        ("K % 2 == 0 and H > 2", "(index[K] + 3 * K / 2) % K"),
        ("K % (2 * H) == 0", "(index[K] + H * (K / 2) / H) % K"),
        ("2 * H == K", "(index[K] + K * H / (2 * H)) % K"),
    ],
)
def test_a_quotient_is_whole_by_what_is_required(condition: str, place: str) -> None:
    text = HALVES.format(condition=condition, place=place)
    forms.same(text, {"x": randn(6)}, lambda x: x.roll(-3, -1), K=6)


@pytest.mark.parametrize("condition", ["K % 3 == 0", "K > 2", "H % 2 == 0", "K % 2 == 1"])
def test_a_quotient_that_may_be_broken_is_none(condition: str) -> None:
    text = HALVES.format(condition=condition, place="index[K] % (K / 2)")
    assert codes(text) == ["E0310"]
    assert "require K % 2 == 0" in refusal(text)


def test_a_window_of_half_a_size_is_counted() -> None:
    made = layer(
        "layer L(K):\n    require K % 2 == 0\n    input x[K]\n    attend t - K / 2 < s <= t:\n"
        "        o = softmax(x[t].T @ x[s]) @ x[s]\n    output o\n"
    )
    (pair,) = [node.op for node in made.graph if isinstance(node.op, ir.Attend)]
    assert str(pair.window) == "floor(K/2)"


MATRIX = """layer Matrix(L):
    input x[L]
    {lines}
    output y[L] = {value}
"""


@pytest.mark.parametrize(
    ("lines", "value"),
    [
        ("", "where(index[L'] < index[L], 1, 0) @ x"),
        ("", "where(index[L] > index[L'], 1, 0) @ x"),
        ("i = index[L]; j = index[L']; M[L, L'] = where(j < i, 1, 0)", "M @ x"),
        ("i = index[L]; j = index[L'] + 1", "real_of(j <= i) @ x"),
        ("", "sum[L'](where(index[L'] < index[L], 1, 0) * take[L](x, index[L']))"),
    ],
)
def test_two_indices_make_a_matrix(lines: str, value: str) -> None:
    """Row i has column j before it, whichever index is written first."""
    text = MATRIX.format(lines=lines, value=value)
    text = "function real_of(c):\n    return where(c, 1, 0)\n\n" + text
    forms.same(text, {"x": randn(5)}, lambda x: x.cumsum(-1) - x, L=5)


@pytest.mark.default("True")
@pytest.mark.parametrize("inside", [True, False])
def test_a_matrix_from_two_indices_in_a_recurrence(inside: bool) -> None:
    matrix = "M = where(index[L'] < index[L], 1, 0) / 2"
    before, within = (f"    {matrix}\n", "") if not inside else ("", f"        {matrix}\n")
    text = (
        f"layer Carry(H, L):\n    input x[H, L]\n{before}    recurrence S[L] over H:\n{within}"
        "        S[t] = 0.5 * S[t-1] + M @ x + M.T @ S[t-1]\n    output y = S\n"
    )

    def formula(x: Tensor) -> Tensor:
        matrix = torch.ones(4, 4, dtype=x.dtype).tril(-1) / 2
        state, states = torch.zeros_like(x[:, 0]), []
        for t in range(x.shape[1]):
            state = 0.5 * state + x[:, t] @ matrix.T + state @ matrix
            states.append(state)
        return torch.stack(states, 1)

    forms.same(text, {"x": randn(2, 4)}, formula, H=2, L=4)


def test_an_index_beside_a_value_is_of_its_dim() -> None:
    """As ever, a lone `L'` beside a value of [L] is L; only indices among themselves make pairs."""
    text = MATRIX.format(lines="", value="x * index[L']")
    forms.same(text, {"x": randn(5)}, lambda x: x * torch.arange(5), L=5)


@pytest.mark.parametrize(
    "lines",
    [
        "i = max(0, min(t - s + N, 2 * N)); z = P[i]",
        "i = where(t < s, 0, t - s) % N; z = take[M](P, i)",
        "j = min(t - s, -(-N)); i = j; z = P[i]",
    ],
)
def test_what_a_named_index_is_made_of_is_whole(lines: str) -> None:
    """N stands in no shape, and beside an index all the same."""
    body = "\n        ".join(lines.split("; "))
    text = f"""layer L(d, N = 2, M = 9):
    input x[d]
    param P[M]
    attend all s:
        {body}
        o = softmax(z + x[t].T @ x[s]) @ x[s]
    output o
"""
    assert codes(text.replace("t - s", "max(0, t - s)")) == []
