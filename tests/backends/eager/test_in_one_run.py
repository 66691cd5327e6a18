"""Which layers take packed sequences in one run; either way each sequence is as if alone."""

from __future__ import annotations

from itertools import pairwise
from textwrap import dedent

import pytest
import torch
from archc.backends.eager.packed import in_one_run

import archc

HEAD = "layer Made(d, K = 4):\n    input x[d]\n"
SUM = """    recurrence S[d]:
        S[t] = 0.5 * S[t-1] + x
        o = S[t]
"""

AT_ONCE = {
    "each token": "    param W[d, K]\n    output y[K] = silu(x @ W)\n",
    "norms and weights over dims": "    output y[d] = softmax[d](l2norm[d](x)) * mean[d](x)\n",
    "the tokens before": "    param c[d, K]\n    output y[d] = shortconv(x, c)\n",
    "windows of tokens": "    output y[d] = sum[K](window[K](x))\n",
    "a recurrence": SUM + "    output y[d] = o\n",
    "a number of each token": "    param w[d]\n    output y = sum[d](x * w)\n",
}

ONE_BY_ONE = {
    "positions": "    output y[d] = x * position(x)\n",
    "an attention": """    q = x
    attend s <= t:
        a = softmax(q[t].T @ x[s])
        o = a @ x[s]
    output y[d] = o
""",
    "the mean of all tokens": "    output y[d] = x - mean[t](x)\n",
    "of all sequences": "    output y[d] = x - mean[batch, t](x)\n",
    "a value of each sequence": "    output y[d] = mean[t](x)\n",
}


def looks_the_same(text: str) -> None:
    """Packed, a sequence is what it is by itself: empty ones, short ones and long ones."""
    made = archc.parse(text).module(d=3, dtype=torch.float64)
    bounds = [0, 0, 1, 6, 6, 25]
    x = torch.randn(1, 25, 3, dtype=torch.float64)
    y = made(x, cu_seqlens=torch.tensor(bounds))
    parts = [made(x[:, a:b]) for a, b in pairwise(bounds)]
    torch.testing.assert_close(y, torch.cat(parts, 1))


@pytest.mark.parametrize("what", AT_ONCE)
def test_what_goes_through_in_one_run(what: str) -> None:
    assert in_one_run(archc.parse(HEAD + AT_ONCE[what]).layer)
    looks_the_same(HEAD + AT_ONCE[what])


@pytest.mark.parametrize("what", ONE_BY_ONE)
def test_what_looks_along_all_tokens_goes_one_by_one(what: str) -> None:
    spec = archc.parse(HEAD + ONE_BY_ONE[what])
    assert not in_one_run(spec.layer)


@pytest.mark.parametrize("what", ["an attention", "positions"])
def test_each_sequence_is_done_alone(what: str) -> None:
    looks_the_same(HEAD + ONE_BY_ONE[what])


def test_another_sequence_goes_one_by_one() -> None:
    assert not in_one_run(archc.load("cross_attention").layer)


@pytest.mark.parametrize(
    ("inputs", "output", "wanted"),
    [
        ("x in K", "E[x]", True),
        ("x[d]; input c[d]", "x * c", True),
        ("x[d]; input c[d] optional", "x * c", False),
    ],
)  # fmt: skip
def test_inputs_that_stand_at_every_token(inputs: str, output: str, wanted: bool) -> None:
    lines = "\n    ".join(["layer Made(d, K = 4):", *f"input {inputs}".split("; ")])
    table = "    param E[K, d]\n" if "E[" in output else ""
    text = f"{lines}\n{table}    output y[d] = {output}\n"
    assert in_one_run(archc.parse(text).layer) is wanted


def test_layers_that_are_called() -> None:
    """As what they do themselves."""
    for inner, wanted in ((AT_ONCE["a recurrence"], True), (ONE_BY_ONE["an attention"], False)):
        text = f"{HEAD}{inner}\nblock Outer(d):\n    input x[d]\n    output y[d] = Made(d)(x)\n"
        assert in_one_run(archc.parse(text).layer) is wanted


def test_tokens_go_through_in_one_run_like_vectors() -> None:
    """An input that is a number for each token, and nothing more."""
    text = """
    layer Embedded(d, n):
        input tokens in n
        param E[n, d]
        x = E[tokens]
        recurrence h[d]:
            h[t] = sigmoid(x) * h[t-1] + x
        output y = h
    """
    assert in_one_run(archc.parse(dedent(text)).layer)
