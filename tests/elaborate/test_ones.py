"""Warnings of a number beside an outer product, where the identity may be meant, and of one that is
added to a state, where an outer product is."""

from __future__ import annotations

import pytest

from archc.elaborate.ones import ones
from tests.elaborate.specs import layer

TEXT = """layer Memory(H, K, V):
    input k[H, K], v[H, V], beta[H], M[H, K, K']
    recurrence S[K, V] over H:
        {body}
        o = S[t].T @ k
    output o
"""


def spans(body: str) -> list[str]:
    """The sums that are warned of."""
    found = ones(layer(TEXT.format(body=body)))
    assert all(each.code == "E0318" and each.severity == "warning" for each in found)
    return [each.label.span.text.removeprefix("(").removesuffix(")") for each in found]


@pytest.mark.parametrize(
    ("body", "sums"),
    [
        ("S[t] = (1 - k @ k.T) @ S[t-1] + k @ v.T", ["1 - k @ k.T"]),
        ("A = beta - k @ (beta * k).T / 2; S[t] = A @ S[t-1]", ["A = beta - k @ (beta * k).T / 2"]),
        ("u = (-(k @ k.T) + 1 + M) @ k; S[t] = u @ v.T", ["-(k @ k.T) + 1 + M"]),
        ("S[t] = (k.T @ (1 - k @ k.T)).T @ v.T", ["1 - k @ k.T"]),
    ],
)
def test_ones_that_are_multiplied_with_a_matrix(body: str, sums: list[str]) -> None:
    assert spans(body) == sums


@pytest.mark.parametrize(
    ("body", "number"),
    [
        ("S[t] = 0.9 * S[t-1] + k.T @ k", "k.T @ k"),
        ("S[t] = S[t-1] + k @ v.T - 2 * beta * (k.T @ (M @ k))", "k.T @ (M @ k)"),
    ],
)
def test_inner_products_that_are_added_to_a_state(body: str, number: str) -> None:
    assert spans(body) == [number]


@pytest.mark.parametrize(
    "body",
    [
        "S[t] = S[t-1] + (k.T @ k) * k @ v.T",
        "S[t] = S[t-1] + k @ v.T + beta",
        "S[t] = S[t-1] + k @ (S[t-1].T @ k).T + M @ S[t-1]",
        "S[t] = (I - k @ k.T) @ S[t-1] + k @ v.T",
        "S[t] = S[t-1] * (1 - k @ v.T) + k @ v.T",
        "S[t] = (1 - where(index[K'] < index[K], 1, 0)) @ S[t-1]",
        "S[t] = (1 - M) @ S[t-1]",
        "S[t] = (M - k @ k.T) @ S[t-1]",
    ],
)
def test_masks_and_identities_are_what_they_say(body: str) -> None:
    assert spans(body) == []
