"""The chunked form of every recurrence is its loop over the tokens, whatever the chunk."""

from __future__ import annotations

import pytest

from archc.elaborate.elaborate import elaborate
from archc.specfile import import_source, read
from archc.syntax.parse import parse
from tests.elaborate.specs import layer
from tests.recurrence.forms import both, furthest, recurrences

CHUNKED = (
    "delta", "gated_delta", "gated_delta_product", "gla", "kda", "linear_attention",
    "linear_attention_simple", "mamba", "mamba2", "mesa", "mlstm", "mom", "retention",
    "rwkv7", "ssm", "ssm_selective",
)  # fmt: skip
"""Bundled specs whose recurrences all have a chunked form."""

LENGTHS = [(7, 4), (7, 1), (7, 7), (7, 16), (1, 4), (0, 4), (33, 8)]
"""Tokens, and tokens in a chunk."""


@pytest.mark.default("kda", "gla", "mamba", "mlstm", "mesa", "rwkv7", "mom")
@pytest.mark.parametrize("name", CHUNKED)
def test_a_bundled_spec_is_the_same_in_chunks(name: str) -> None:
    for graph, node, found in recurrences(elaborate(parse(read(name)), None, {}, import_source)):
        assert found.graph is not None and not found.kept
        for tokens, chunk in LENGTHS:
            step, chunks = both(graph, node, found.graph, tokens, chunk)
            assert furthest(step, chunks) < 1e-10, (tokens, chunk)


HEAD = """
layer Example(H, K = 4, V = 3):
    input q[H, K], k[H, K], u[H, K], y[H, K], x[H, K], v[H, V], a[H], b[H]
    g = -softplus(x)
    f = -softplus(a)
    e = -softplus(v)
"""

UPDATES = {
    "no decay": "S[t] = S[t-1] + k @ v.T",
    "scalar": "S[t] = exp(f) * S[t-1] + k @ v.T",
    "channel": "S[t] = diag(exp(g)) @ S[t-1] + k @ v.T",
    "value side": "S[t] = S[t-1] @ diag(exp(e)) + k @ v.T",
    "two sides": "S[t] = diag(exp(g)) @ S[t-1] @ diag(exp(e)) + k @ v.T",
    "a correction": "S[t] = (I - b * k @ k.T) @ S[t-1] + b * k @ v.T",
    "scalar, corrected": "S[t] = exp(f) * (I - b * k @ k.T) @ S[t-1] + k @ v.T",
    "corrected before the decay": "S[t] = diag(exp(g)) @ (I - b * k @ k.T) @ S[t-1] + k @ v.T",
    "corrected after the decay": "S[t] = (I - b * k @ k.T) @ diag(exp(g)) @ S[t-1] + k @ v.T",
    "reads another vector": "S[t] = diag(exp(g)) @ S[t-1] + u @ (S[t-1].T @ y).T + k @ v.T",
    "two corrections": "S[t] = diag(exp(g)) @ S[t-1] - k @ (k.T @ S[t-1]) - u @ (y.T @ S[t-1])",
    "two micro-steps": "S[t] = (I - b * k @ k.T) @ (I - a * u @ u.T) @ diag(exp(g)) @ S[t-1]"
    " + k @ v.T",
    "a gate between": "S[t] = (I - b * k @ k.T) @ diag(exp(g)) @ (I - a * u @ u.T) @ S[t-1]",
    "two writes": "S[t] = exp(f) * S[t-1] + k @ v.T + u @ e.T",
}

READS = {
    "after the write": "S[t].T @ q",
    "before the decay": "S[t-1].T @ q",
    "mixed with free values": "(S[t].T @ q) * sigmoid(v) + v * sum[K](q * k)",
    "through a function": "tanh(S[t].T @ q) + S[t-1].T @ k",
}


@pytest.mark.default("after the write", "two micro-steps", "scalar, corrected")
@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("update", UPDATES)
def test_any_update_with_any_read_is_the_same_in_chunks(update: str, read: str) -> None:
    text = HEAD + (
        f"    recurrence S[K, V] over H:\n        {UPDATES[update]}\n        o = {READS[read]}\n"
        "    output o\n"
    )
    ((graph, node, found),) = recurrences(layer(text))
    assert found.graph is not None, found.kept
    for tokens, chunk in ((9, 4), (3, 8), (0, 2)):
        step, chunks = both(graph, node, found.graph, tokens, chunk)
        assert furthest(step, chunks) < 1e-10, (tokens, chunk)


CASCADES = {
    "a read feeds a value": """
        S[t] = exp(f) * S[t-1] + k @ v.T
        r = tanh(S[t].T @ q)
        R[t] = diag(exp(g)) @ R[t-1] + k @ r.T
        o = R[t].T @ q""",
    "a read feeds a gate": """
        S[t] = exp(f) * S[t-1] + k @ v.T
        R[t] = sigmoid(sum[V](S[t].T @ q)) * R[t-1] + k @ v.T
        o = R[t].T @ q""",
    "a query is made of a state that comes later": """
        S[t] = exp(f) * S[t-1] + k @ v.T
        R[t] = sigmoid(a) * R[t-1] + k @ v.T
        o = R[t].T @ tanh(S[t] @ v)""",
    "a cell feeds a matrix": """
        S[t] = tanh(S[t-1]) + k @ v.T
        R[t] = exp(f) * R[t-1] + k @ (S[t].T @ q).T
        o = R[t].T @ q""",
}


@pytest.mark.parametrize("name", CASCADES)
def test_states_that_feed_others_are_done_in_order(name: str) -> None:
    text = HEAD + (f"    recurrence S[K, V], R[K, V] over H:{CASCADES[name]}\n    output o\n")
    ((graph, node, found),) = recurrences(layer(text))
    assert found.graph is not None
    step, chunks = both(graph, node, found.graph, 9, 4)
    assert furthest(step, chunks) < 1e-10


def test_heads_stand_before_rows() -> None:
    """Also of what all heads share: a program has one head, whose rows stand together in memory."""
    ((_, _, found),) = recurrences(elaborate(parse(read("mamba2")), None, {}, import_source))
    assert found.graph is not None
    for each in found.graph:
        names = each.type.names
        assert "H" not in names or "i" not in names or names.index("H") < names.index("i")
