"""Numbers that pairs of tokens look up by their distance, and sums of them, beside torch's."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from archc.runtime import by_distance
from archc.runtime.by_distance import products_by_distance, sums_by_distance, take_by_distance

SIZES = [(1, 1, 3), (1, 7, 4), (5, 1, 4), (2, 3, 4), (7, 7, 5), (4, 9, 5), (20, 5, 6), (0, 3, 2)]
"""Readers, tokens read, rows."""


def drawn(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64).requires_grad_()


def clamped(T: int, S: int, W: int) -> Tensor:
    """The distance of each pair: the last reader stands at the last token."""
    t = torch.arange(T)[:, None] + S - T
    return (t - torch.arange(S)).abs().clamp(max=W - 1)


@pytest.mark.parametrize(("T", "S", "W"), SIZES)
def test_pairs_look_up_and_are_summed_as_by_gather_and_scatter(T: int, S: int, W: int) -> None:
    torch.manual_seed(0)
    at = clamped(T, S, W)
    x, d, all_rows = drawn(2, T, W), drawn(2, T, S), drawn(2, 1, W)
    every, index = at.expand(2, T, S), torch.zeros(2, T, W, dtype=torch.float64)
    wanted, found = x.gather(-1, every), take_by_distance(x, at)
    assert torch.equal(wanted, found)
    slopes = [torch.autograd.grad(y, x, d, retain_graph=True)[0] for y in (wanted, found)]
    torch.testing.assert_close(*slopes)
    assert torch.equal(take_by_distance(all_rows, at), all_rows[:, 0][:, at])
    torch.testing.assert_close(sums_by_distance(d, at, W), index.scatter_add(-1, every, d))


@pytest.mark.parametrize(("T", "S"), [(3, 8), (20, 23), (20, 0)])
def test_products_are_those_of_rows_for_few_and_many_readers(
    T: int, S: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(by_distance, "PRODUCTS", 7 * 2 * 3 * 5)  # of 7 tokens at once
    torch.manual_seed(0)
    k, table, at = drawn(2, 3, S, 6), drawn(3, 5, 6), clamped(T, S, 5)
    wanted = torch.einsum("bhsk,htsk->bhts", k, table[:, at])
    found = products_by_distance(k, table[None], at)
    torch.testing.assert_close(found, wanted)
    slopes = [torch.autograd.grad(y.sin().sum(), [k, table]) for y in (wanted, found)]
    torch.testing.assert_close(*slopes)


def test_second_gradients_and_transforms() -> None:
    torch.manual_seed(0)
    x, at = drawn(2, 4, 3), clamped(4, 6, 3)
    assert torch.autograd.gradgradcheck(lambda x: take_by_distance(x, at).sin(), x)
    each = torch.func.vmap(lambda x: take_by_distance(x, at))(x)
    _, along = torch.func.jvp(lambda x: take_by_distance(x, at), (x,), (x,))
    wanted = take_by_distance(x, at)
    assert torch.equal(each, wanted) and torch.equal(along, wanted)
    most = torch.full((1, 1, 3), torch.inf).index_fill_(-1, torch.tensor(0), 0.0)
    assert take_by_distance(most, at)[0].diagonal(2).eq(0).all()  # no infinity beside a number
