"""Specs that drawn programs led to: each is written by every backend and computes what it says."""

from __future__ import annotations

import pytest

from archc.compile import compile_source, elaborated, text_of
from archc.source import Source

FOUND = {
    "a reader that is made of positions alone, of another sequence": """
layer L(d, e, H, K, D = 3):
    input x[d]
    input c[e] along m
    param w[D, H, K]; W_k[e, H, K]; W_v[e, H, d]
    q = w[position(x) % D]
    k = c @ W_k
    v = c @ W_v
    attend all m over H:
        o = softmax(q[t].T @ k[m]) @ v[m]
    output y[d] = x + sum[H](o)
""",
}


@pytest.mark.parametrize("name", FOUND)
def test_found(name: str) -> None:
    source = Source("found.arch", FOUND[name].lstrip())
    compile(compile_source(source), "eager", "exec")  # checked against the meaning
    compile(text_of(elaborated(source), "triton"), "triton", "exec")
