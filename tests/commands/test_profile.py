"""What a layer costs, against formulas of its sizes."""

from __future__ import annotations

from pathlib import Path

import pytest

from archc.commands.profile import SIZES, TOKENS, Profile, profile

MEMORY = '''
layer Made(d, H = 2, K = 3, V = 5, W = 4):
    """A memory behind a convolution. Second sentence.
    source: a paper"""
    input x[d]
    param c[d, W]; W_k[d, H, K]; W_v[d, H, V]
    u = shortconv(x, c)
    k = u @ W_k
    v = u @ W_v
    recurrence S[K, V] over H:
        S[t] = 0.5 * S[t-1] + k @ v.T
        o = S[t].T @ k
    output o
'''

ATTENTION = """
layer Made(d = 70, H = 2, K = 3, V = 5):
    input x[d]
    param W_q, W_k[d, H, K]; W_v[d, H, V]
    q = x @ W_q
    k = x @ W_k
    v = x @ W_v
    attend s <= t over H:
        a = softmax(q[t].T @ k[s])
        o = a @ v[s]
    output o
"""


@pytest.fixture
def cost(tmp_path: Path):
    def of(text: str) -> Profile:
        (tmp_path / "made.arch").write_text(text)
        return profile(str(tmp_path / "made.arch"))

    return of


def test_a_recurrence(cost) -> None:
    """A state in float32, and the tokens that the convolution still reads in bfloat16."""
    found = cost(MEMORY)
    d = SIZES["d"]
    assert found.sizes == {"d": d} and found.source == "a paper"
    assert found.state == 4 * 2 * 3 * 5 + 2 * 3 * d and found.cache == 0
    products = 2 * d * 2 * (3 + 5) + 2 * d * 4
    at_least, memory = products + 2 * 2 * 3 * 5, 8 * 2 * 3 * 5
    assert at_least < found.flops <= products + memory


def test_an_attention(cost) -> None:
    """Keys and values of every token in bfloat16; or its input, where that is less."""
    found = cost(ATTENTION)
    assert found.sizes == {} and found.state == 0 and found.cache == 2 * 2 * (3 + 5)
    products = 2 * 70 * 2 * (3 + 3 + 5)
    pairs = TOKENS * 2 * 2 * (3 + 5)
    assert products + pairs <= found.flops < 1.5 * (products + pairs)
    assert cost(ATTENTION.replace("d = 70", "d = 7")).cache == 2 * 7
