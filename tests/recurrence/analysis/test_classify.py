"""Classes of recurrences, from algebra: decay, corrections, how states feed one another."""

from __future__ import annotations

import pytest

from archc.algebra.simplify import simplify
from archc.recurrence.analysis.classify import classify, summary
from tests.elaborate.specs import layer

HEAD = (
    "layer L(d, H, K, V):\n    input k[H, K], q[H, K], v[H, V], u[H, V], a[H, K], b[H], g[H]\n"
    "    param A[H, K, K']\n"
)
USE = "    output y = sum[K](A[0] @ k)\n"

LINEAR = [
    ("S[t-1] + k @ v.T", "linear recurrence, no decay"),
    ("g * S[t-1] + k @ v.T", "linear recurrence, scalar decay"),
    ("S[t-1] / 2 + k @ v.T", "linear recurrence, scalar decay"),
    ("diag(exp(a)) @ S[t-1] + k @ v.T", "linear recurrence, decay per channel of K"),
    ("S[t-1] @ diag(u) + k @ v.T", "linear recurrence, decay per channel of V"),
    ("diag(a) @ S[t-1] @ diag(u) + k @ v.T", "linear recurrence, decay per element"),
    ("(I - b * k @ k.T) @ S[t-1]", "linear recurrence, no decay, 1 low-rank correction"),
    ("S[t-1] + k @ (v - S[t-1].T @ k).T", "linear recurrence, no decay, 1 low-rank correction"),
    (
        "(I - b * k @ k.T) @ (g * S[t-1]) + k @ v.T",
        "linear recurrence, scalar decay, 1 low-rank correction",
    ),
    (
        "diag(a) @ S[t-1] + k @ (S[t-1].T @ q).T",
        "linear recurrence, decay per channel of K, 1 low-rank correction",
    ),
    (
        "(I - k @ k.T) @ (I - q @ q.T) @ S[t-1]",
        "linear recurrence, no decay, 2 low-rank corrections",
    ),
    ("A @ S[t-1] + k @ v.T", "linear recurrence, constant dense transition"),
    ("where(b > 0, S[t-1], g * S[t-1] + k @ v.T)", "linear recurrence, scalar decay"),
]


def classes(body: str, states: str = "S[K, V]") -> list[str]:
    """The classes of a recurrence over H with this body, after simplification."""
    uses_a = "A @" in body or "A[0]" in body
    head = HEAD if uses_a else HEAD.replace("    param A[H, K, K']\n", "")
    text = f"{head}    recurrence {states} over H:\n        {body}\n    output {states[0]}\n"
    return [str(found) for found in classify(simplify(layer(text)))]


@pytest.mark.parametrize(("update", "text"), LINEAR)
def test_linear_updates(update: str, text: str) -> None:
    assert classes(f"S[t] = {update}") == [f"S: {text}"]


SEQUENTIAL = [
    ("g * S[t-1] + k @ tanh(S[t-1].T @ k).T", "`tanh` of a state"),
    ("S[t-1] * S[t-1] + k @ v.T", "a state times a state"),
    ("S[t-1] / (1 + k.T @ S[t-1] @ v) + k @ v.T", "division by a state"),
    ("where(S[t-1] > 0, S[t-1], k @ v.T)", "`gt` of a state"),
]


@pytest.mark.parametrize(("update", "reason"), SEQUENTIAL)
def test_what_is_not_linear_is_named_and_underlined(update: str, reason: str) -> None:
    text = (
        f"{HEAD.replace('    param A[H, K, K' + chr(39) + ']' + chr(10), '')}"
        f"    recurrence S[K, V] over H:\n        S[t] = {update}\n    output S\n"
    )
    (found,) = classify(simplify(layer(text)))
    assert (found.kind, found.reason) == ("sequential", reason)
    assert found.span is not None and found.span.line == 4


def test_a_stabiliser_is_linear_over_max_plus() -> None:
    body = "m[t] = max(g + m[t-1], b)\n        S[t] = exp(g + m[t-1] - m[t]) * S[t-1] + k @ v.T"
    assert classes(body, "S[K, V], m[] = -inf") == [
        "m: running maximum, a recurrence over (max, +)",
        "S: linear recurrence, scalar decay",
    ]


def test_a_cascade_is_taken_apart() -> None:
    """P feeds S through a non-linearity: each is linear in itself."""
    body = "P[t] = g * P[t-1] + k\n        S[t] = S[t-1] + tanh(P[t]) @ v.T"
    assert classes(body, "S[K, V], P[K]") == [
        "P: linear recurrence, scalar decay",
        "S: linear recurrence, no decay",
    ]


def test_states_that_feed_each_other_are_one_component() -> None:
    body = "S[t] = S[t-1] + P[t-1]\n        P[t] = g * P[t-1] - b * S[t-1] + k @ v.T"
    assert classes(body, "S[K, V], P[K, V]") == [
        "P, S: linear recurrence, scalar decay, states coupled"
    ]


def test_attention_is_described() -> None:
    text = (
        "layer L(K, w):\n    input q[K], k[K]\n    attend t - w < s <= t:\n"
        "        o = softmax(q.T @ k[s]) @ k[s]\n    output o\n"
    )
    assert summary(layer(text)) == "softmax attention over the last w tokens"
    assert summary(layer("layer L(d):\n    input x[d]\n    output y[d] = x\n")) == "token by token"
