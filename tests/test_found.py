"""Specs that drawn programs led to: each is written by every backend and computes what it says."""

from __future__ import annotations

import pytest

from archc.compile import compile_source, elaborated, text_of
from archc.source import Source

FOUND = {
    "a state that is read with weights of 0": """
layer L(d, H, K, V):
    input x[d]
    param W_k[d, H, K]; W_v[d, H, V]; W_q[d, H, K]
    k = x @ W_k
    v = x @ W_v
    q = x @ W_q
    recurrence S[K, V] over H:
        S[t] = 0.5 * S[t-1] + k @ v.T
        o = S[t].T @ (q - q) + S[t-1].T @ q
        z = S[t].T @ (q - q)
    output y[H, V] = o + z
""",
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
    "a state that is written nothing, and a weight of that": """
layer L(d, H, K, V):
    input x[d]
    param W_k[d, H, K]; W_v[d, H, V]; w[]
    k = x @ W_k
    v = x @ W_v
    u = w * sum[d](x)
    recurrence S[K, V] over H:
        S[t] = S[t-1] + u * (k @ (v - v).T)
        o = S[t].T @ k
    output y[H, V] = o + u
""",
    "a sum over pairs of what is taken from the token read": """
layer L(d, H):
    input x[d]
    b[H] = take[d](x, index[H] % d)
    attend s <= t over H:
        o = max[s](x[t].T @ x[s] + b[s])
    output y[H] = o
""",
    "a state that is one number, and starts with one": """
layer L(d):
    input x[d]
    param w[d]
    g = sigmoid(x @ w)
    recurrence n[] = 1:
        n[t] = g * n[t-1] + g
    output y[d] = x * n
""",
    "a law of runs that are joined by the larger": """
layer Token(d):
    input a[], b[d]
    output p[] = a
    output q[d] = b

layer Merge(d):
    input p[], q[d], p'[], q'[d]
    output P[] = p + p'
    output Q[d] = max(q + p', q')

layer Apply(d):
    input p[], q[d], m[d]
    output after[d] = max(m + p, q)

layer L(H, V):
    input a[H], b[H, V]
    chunk: law(Token, Merge, Apply)
    recurrence m[V] over H:
        m[t] = max(m[t-1] + a, b)
    output m[H, V]
""",
    "a layer of positions alone": """
layer Inner(d):
    input x[d]
    param w[d] = 1
    output y = w * x[t-1]

layer L(d, length = 64):
    input x[d]
    param P[length, d] = normal(0, 1)
    output y = x + Inner(d)(P[t])
""",
    **{
        f"{what} of positions alone": f"""
layer L(d, W = 3, length = 64):
    input x[d]
    param P[length, d] = normal(0, 1)
    p = P[t]
{lines}
"""
        for what, lines in {
            "a convolution": "    param w[d, W]\n    output y = x + shortconv(p, w)",
            "a window": "    output y = x + max[W](window[W](p))",
            "an earlier token": "    output y = x + p[t-2]",
            "an earlier position": "    i = position(p)\n    output y = x * p + i[t-1]",
            "an earlier condition": "    i = position(x) > 2\n    output y = x + p * i[t-1]",
            "blocks": "    blocks b of W every 2:\n        k = mean[W](p[b])\n"
            "    attend b ending <= t:\n        o = softmax(x[t].T @ k[b]) @ k[b]\n"
            "    output y = x + o",
            "an attend": "    attend s <= t:\n        o = softmax(p[t].T @ p[s]) @ p[s]\n"
            "    output y = x + o",
            "an attend to indices": "    i = position(x) / 9\n    attend s <= t:\n"
            "        o = softmax(p[t].T @ p[s] + i[s]) @ x[s]\n    output y = o",
            "a recurrence": "    recurrence h[d]:\n        h[t] = h[t-1] / 2 + p\n"
            "    output y = x + h",
            "a count": "    i = position(x)\n    recurrence h[]:\n        h[t] = h[t-1] / 2 + i\n"
            "    output y = x * p + h",
            "an output": "    output y = x * p\n    output i = position(x)\n    output p",
        }.items()
    },
}


@pytest.mark.parametrize("name", FOUND)
def test_found(name: str) -> None:
    source = Source("found.arch", FOUND[name].lstrip())
    compile(compile_source(source), "eager", "exec")  # checked against the meaning
    compile(text_of(elaborated(source), "triton"), "triton", "exec")
