"""States that fall back to a value that all tokens share, in chunks: no token writes a matrix."""

from __future__ import annotations

import pytest

from tests.elaborate.specs import layer
from tests.recurrence.forms import both, furthest, recurrences

HEAD = """
layer Rests(H, K = 4, V = 3):
    input q[H, K], k[H, K], u[H, K], x[H, K], v[H, V], a[H], b[H]
    param P[H, K, V]
    g = exp(-softplus(x))
    f = exp(-softplus(a))
    c = sigmoid(b)
    recurrence S[K, V] = P over H:
"""

UPDATES = {
    "a scalar": ["S[t] = f * S[t-1] + (1 - f) * P + k @ v.T"],
    "a channel": ["S[t] = diag(g) @ S[t-1] + diag(1 - g) @ P + k @ v.T"],
    "by how far": ["S[t] = P + f * (S[t-1] - P) + k @ v.T"],
    "a correction": [
        "E = diag(g) @ S[t-1] + diag(1 - g) @ P",
        "S[t] = E + c * k @ (v - E.T @ k).T",
    ],
    "two corrections": [
        "E = f * S[t-1] + (1 - f) * P",
        "F = E + c * k @ (v - E.T @ k).T",
        "S[t] = F + c * u @ (v - F.T @ u).T",
    ],
}


@pytest.mark.parametrize("update", UPDATES)
def test_as_the_loop_and_no_matrix_at_a_token(update: str) -> None:
    lines = [*UPDATES[update], "o = S[t].T @ q + S[t-1].T @ u"]
    text = HEAD + "".join(f"        {line}\n" for line in lines) + "    output o\n"
    ((graph, node, found),) = recurrences(layer(text))
    assert found.graph is not None and not found.kept and "far it is from `P`" in found.notes[0]
    for made in found.graph:
        names = {*made.type.names}
        assert not {"K", "V"} <= names or not {"i", "t"} & names, "one a chunk at most"
    for tokens, chunk in [(7, 4), (7, 1), (7, 16), (1, 4), (0, 4), (33, 8)]:
        step, chunks = both(graph, node, found.graph, tokens, chunk)
        assert furthest(step, chunks) < 1e-10, (tokens, chunk)


@pytest.mark.parametrize(
    "update",
    ["S[t] = f * S[t-1] + 0.5 * f * P + k @ v.T", "S[t] = f * S[t-1] + k @ v.T + u @ (P.T @ k).T"],
)
def test_one_that_falls_back_to_nothing_is_as_it_was(update: str) -> None:
    text = f"{HEAD}        {update}\n        o = S[t].T @ q + P.T @ x\n    output o\n"
    ((graph, node, found),) = recurrences(layer(text))
    assert found.graph is not None and not found.notes
    step, chunks = both(graph, node, found.graph, 9, 4)
    assert furthest(step, chunks) < 1e-10
