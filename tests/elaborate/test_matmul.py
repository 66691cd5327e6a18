"""`@` has one meaning: held against einsum on random numbers, refused where it would have two."""

from __future__ import annotations

import pytest
import torch

from tests.elaborate.specs import codes, outputs, refusal

SIZES = {"d": 3, "H": 2, "K": 4, "V": 5, "n": 3}

ORDINARY = [
    ("x[d], W[d, H, K]", "x @ W", "btd,btdhk->bthk"),
    ("o[H, V], W[H, V, d]", "o @ W", "bthv,bthvd->btd"),
    ("A[n, n'], X[n, d]", "A @ X", "btij,btjd->btid"),
    ("a[n], X[n, d]", "a @ X", "bti,btid->btd"),
    ("x[d], W[d, d']", "x @ W", "bti,btij->btj"),
    ("x[d], W[d', d]", "x @ W", "bti,btij->btj"),
    ("E[V, d], x[d]", "x @ E.T", "btvd,btd->btv"),
    ("q[H, K], k[K]", "q @ k", "bthk,btk->bth"),
    ("q[K], k[K]", "q @ k", "btk,btk->bt"),
    ("A[n, n'], x[n]", "A @ x", "btij,btj->bti"),
    ("x[d], A[d, n], B[n, V]", "x @ A @ B", "btd,btdn,btnv->btv"),
    ("a[K], b[H, K]", "sum[K](a * b)", "btk,bthk->bth"),
    ("a[H, K], b[H, K]", "sum[H](a * b)", "bthk,bthk->btk"),
    ("A[n, n'], B[n, n']", "sum[n, n'](A * B)", "btij,btij->bt"),
]

MEMORY = [
    ("k[H, K], v[H, V]", "k @ v.T", "bthk,bthv->bthkv"),
    ("k[H, K], v[H, K]", "k @ v.T", "bthi,bthj->bthij"),
    ("k[H, K], v[H, K]", "k.T @ v", "bthk,bthk->bth"),
    ("S[H, K, V], q[H, K]", "S.T @ q", "bthkv,bthk->bthv"),
    ("S[H, K, V], q[H, V]", "S @ q", "bthkv,bthv->bthk"),
    ("q[H, K], S[H, K, V]", "(q.T @ S).T", "bthk,bthkv->bthv"),
    ("A[H, K, K'], S[H, K, V]", "A @ S", "bthij,bthjv->bthiv"),
    ("A[H, K, K'], B[H, K, K']", "A @ B", "bthij,bthjk->bthik"),
    ("A[H, K, K'], B[H, K, K']", "A @ B.T", "bthij,bthkj->bthik"),
    ("A[H, K, K'], k[H, K]", "A.T @ k", "bthji,bthj->bthi"),
    ("a[H, K], S[H, K, V]", "diag(a) @ S", "bthk,bthkv->bthkv"),
    ("a[H, V], S[H, K, V]", "S @ diag(a)", "bthv,bthkv->bthkv"),
]

AXES = {"h": "H", "k": "K", "v": "V", "d": "d", "n": "n"}


def shape_of(formula: str, declared: str) -> str:
    """The dims that an einsum leaves, as a spec names them."""
    sizes = {}
    operands, out = formula.split("->")
    for operand, value in zip(operands.split(","), declared.split("], "), strict=True):
        for letter, dim in zip(
            operand[2:], value.split("[")[1].rstrip("]").split(", "), strict=True
        ):
            sizes[letter] = dim.rstrip("'")
    names: list[str] = []
    for letter in out[2:]:
        names.append(sizes[letter] + "'" * (sizes[letter] in names))
    return ", ".join(names)


@pytest.mark.parametrize(("declared", "expression", "formula"), ORDINARY)
def test_joins_trailing_with_leading_dims(declared: str, expression: str, formula: str) -> None:
    text = (
        f"layer L(d, H, K, V, n):\n    input {declared}\n"
        f"    output y[{shape_of(formula, declared)}] = {expression}\n"
    )
    made, given = outputs(text, **SIZES)
    torch.testing.assert_close(made, torch.einsum(formula, *given.values()))


@pytest.mark.parametrize(("declared", "expression", "formula"), MEMORY)
def test_is_the_matrix_product_of_columns(declared: str, expression: str, formula: str) -> None:
    inside = shape_of(formula, declared).split(", ")
    state = ", ".join(inside[1:])
    text = (
        f"layer L(d, H, K, V, n):\n    input {declared}\n"
        f"    recurrence Z[{state}] over H:\n        Z[t] = {expression}\n"
        f"    output Z\n"
    )
    made, given = outputs(text, **SIZES)
    torch.testing.assert_close(made, torch.einsum(formula, *given.values()))


AMBIGUOUS = [
    ("A[n, n'], B[n, n']", "A @ B", "over `n'` or over `n, n'`"),
    ("X[d, d'], W[d, d', H]", "X @ W", "over `d'` or over `d, d'`"),
]


@pytest.mark.parametrize(("declared", "expression", "ways"), AMBIGUOUS)
def test_two_ways_to_join_are_refused(declared: str, expression: str, ways: str) -> None:
    text = f"layer L(d, H, n):\n    input {declared}\n    output y = {expression}\n"
    assert codes(text) == ["E0302"]
    assert ways in refusal(text) and "write the sum: `sum[" in refusal(text)


REFUSED = [
    ("x[d], W[K, V]", "x @ W", "E0301"),
    ("x[d], W[H, d]", "x @ W", "E0301"),
]


@pytest.mark.parametrize(("declared", "expression", "code"), REFUSED)
def test_dims_that_do_not_meet_are_refused(declared: str, expression: str, code: str) -> None:
    text = f"layer L(d, H, K, V):\n    input {declared}\n    output y = {expression}\n"
    assert codes(text) == [code]


IN_MEMORY = [
    ("k[H, K], v[H, K]", "k @ v", "an inner product is `k.T @ v`, an outer product `k @ v.T`"),
    ("S[H, K, V], q[H, K]", "S @ q", "transpose the matrix: `S.T @ q`"),
    ("b[H], q[H, K]", "b @ q", "scale with `*`"),
    ("S[H, K, V], q[H, K]", "S + q", "`a @ one.T`, or `one @ a.T`, where `one = 0 * index[V] + 1`"),
    ("k[H, K], v[H, V]", "k + v", "an outer product is written `a @ b.T`"),
    ("k[H, K], v[H, V]", "k * v", "is named in front of the block"),
    ("k[H, K]", "k @ (k + k.T)", "`+` of a column and a row"),
    ("k[H, K], w[K, K']", "k @ (k + k.T @ w).T", "or turn the row: `(x.T @ W).T`"),
    ("k[H, K], w[K, K']", "k @ (k - mean[K'](w.T @ k)).T", "`K'` is `K` again: write `K`"),
    ("k[H, K], v[H, V]", "(k + v) @ v.T", "`+` of columns over `K` and `V`"),
]


@pytest.mark.parametrize(("declared", "expression", "says"), IN_MEMORY)
def test_columns_and_rows_do_not_mix(declared: str, expression: str, says: str) -> None:
    text = (
        f"layer L(d, H, K, V):\n    input {declared}\n    recurrence Z[K, V] over H:\n"
        f"        Z[t] = Z[t-1] + {expression}\n    output Z\n"
    )
    assert says in refusal(text)


def test_a_times_x_is_not_its_transpose() -> None:
    """`A[n, n'] @ X[n, d]` is the paper's A X: row i of A weighs the rows of X."""
    text = "layer L(n, d):\n    input A[n, n'], X[n, d]\n    output Y[n, d] = A @ X\n"
    a = torch.tensor([[0.0, 1.0], [0.0, 0.0]], dtype=torch.float64).expand(2, 6, 2, 2)
    x = torch.tensor([[1.0], [2.0]], dtype=torch.float64).expand(2, 6, 2, 1)
    made, _ = outputs(text, {"A": a, "X": x}, n=2, d=1)
    assert made[0, 0].flatten().tolist() == [2.0, 0.0]


def test_dims_of_equal_size_are_not_the_same_dim() -> None:
    """K and V may both be 4: joining them is an error all the same."""
    text = "layer L(K = 4, V = 4):\n    input q[K], v[V]\n    output y = q @ v\n"
    assert codes(text) == ["E0301"]
