"""Every reduction over everything that it can range over, against the formula in torch."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tests.elaborate.forms import T, agree, randn
from tests.elaborate.specs import refusal

OVER: dict[str, Callable[[Tensor, int], Tensor]] = {
    "sum": torch.sum,
    "mean": torch.mean,
    "max": torch.amax,
    "min": torch.amin,
    "prod": torch.prod,
}
SIZES = {"H": 6, "G": 2, "K": 3}
HEAD = "layer L(H, G, K):\n    input z[H, K], x[K]\n"


def inputs() -> dict[str, Tensor]:
    return {"z": randn(6, 3), "x": randn(3, seed=1)}


@pytest.mark.parametrize("name", OVER)
def test_over_the_heads_of_each_group(name: str) -> None:
    given = inputs()
    expected = OVER[name](given["z"].unflatten(2, (2, 3)), 3)
    agree(f"{HEAD}    output y = {name}[H in G](z + 0 * x)\n", given, expected, **SIZES)


@pytest.mark.parametrize("name", OVER)
def test_over_the_heads_of_each_group_in_an_attend(name: str) -> None:
    """Of a weight for each pair; outside it is a mean of the values."""
    text = (
        f"{HEAD}    attend s <= t:\n"
        f"        p = {name}[H in G](sum[K](z[t] * z[s]))\n"
        "        y = sum[s](p)\n    output y\n"
    )
    given = inputs()
    pairs = torch.einsum("bthk,bshk->btsh", given["z"], given["z"]).unflatten(3, (2, 3))
    taken = OVER[name](pairs, 4) * torch.ones(T, T, dtype=torch.float64).tril()[..., None]
    agree(text, given, taken.sum(2), **SIZES)


@pytest.mark.default("mean", "prod")
@pytest.mark.parametrize("name", OVER)
def test_over_a_dim_two_dims_and_a_second_dim_of_a_matrix(name: str) -> None:
    given = inputs()
    z, x, over = given["z"], given["x"], OVER[name]
    both = over(z.flatten(2), 2)
    agree(
        f"{HEAD}    output y = {name}[H, K](z) + 0 * x\n", given, both[..., None] + 0 * x, **SIZES
    )
    matrix = z.sum(2)[..., :, None] * x[..., None, :]
    text = (
        f"{HEAD}    w = sum[H](z)\n    chunk: sequential\n    recurrence S[K, K']:\n"
        "        S[t] = 0 * S[t-1] + w @ x.T\n"
        f"    output y = {name}[K'](S)\n"
    )
    agree(text, given, over(matrix, 3), **SIZES)


@pytest.mark.default("sum", "max")
@pytest.mark.parametrize("name", ("sum", "mean", "max", "min", "prod"))
def test_of_conditions_and_of_positions(name: str) -> None:
    """A condition counts as 0 or 1, over a dim and over groups; of positions too."""
    given = inputs()
    over, holds = OVER[name], (given["z"] > 0).double()
    groups = holds.unflatten(2, (2, 3))
    zero = " + 0 * sum[H, K](z) + 0 * sum[K](x)"
    agree(f"{HEAD}    output y = {name}[K](z > 0){zero}\n", given, over(holds, 3), **SIZES)
    agree(f"{HEAD}    output y = {name}[H in G](z > 0){zero}\n", given, over(groups, 3), **SIZES)
    places = over(torch.arange(6.0, dtype=torch.float64).reshape(2, 3), 1).expand(2, T, 2)
    agree(f"{HEAD}    output y = {name}[H in G](index[H]){zero}\n", given, places, **SIZES)


@pytest.mark.default("max", "prod")
@pytest.mark.parametrize("name", ("sum", "max", "min", "prod"))
def test_over_the_tokens_read(name: str) -> None:
    given = inputs()
    text = f"{HEAD}    attend s <= t:\n        y = {name}[s](sum[K](z[t] * z[s]))\n    output y\n"
    pairs = torch.einsum("bthk,bshk->bths", given["z"], given["z"])
    rows = [OVER[name](pairs[:, t, :, : t + 1], 2) for t in range(T)]
    agree(text, given, torch.stack(rows, 1), **SIZES)


@pytest.mark.default("3 * sum[K](x)")
@pytest.mark.parametrize("scaled", ("3 * sum[K](x)", "sum[K](x) * 3", "sum[K](3 * x)"))
def test_a_number_times_a_sum(scaled: str) -> None:
    given = inputs()
    agree(
        f"{HEAD}    output y = {scaled} + 0 * sum[H, K](z)\n",
        given,
        3 * given["x"].sum(2),
        **SIZES,
    )
    text = (
        f"{HEAD}    recurrence S[]:\n        S[t] = S[t-1] / 2 + {scaled}\n"
        "    output y = S + 0 * sum[H, K](z)\n"
    )
    weights = 0.5 ** (torch.arange(T)[:, None] - torch.arange(T)).double()
    agree(text, given, 3 * given["x"].sum(2) @ weights.tril().mT, **SIZES)


def test_groups_of_unequal_size_are_refused() -> None:
    """A head too many would belong to no group."""
    import archc
    from archc.diagnostics import ArchError

    spec = archc.parse(f"{HEAD}    output y = max[H in G](z) + 0 * x\n")
    with pytest.raises(ArchError, match="H % G == 0"):
        spec.module(H=5, G=2, K=3)
    assert "E0401" in refusal(f"{HEAD}    output y = sum[H in G](z) + 0 * x\n", H=5, G=2)
