"""Sums of a softmax's weights, which kernels make of the log of its total."""

from __future__ import annotations

from inspect import signature
from typing import Any

import pytest
import torch
from archc.backends.load import load as loaded

import archc
from archc.attention.totals import of_totals
from archc.attention.weighted_sum import WeightedSum
from archc.compile import folded, text_of
from archc.ir.meaning import evaluate_graph
from archc.verify.fold_trial import distance, drawn
from tests.attention.cases import spec
from tests.attention.test_multiplied_out import attend_of

PLAIN = "q[t].T @ k[s] / sqrt(K)"
SIZES = {"H": 4, "K": 20, "V": 24}
SUMS = {
    "a sink of the token": spec(
        f"softmax({PLAIN}, b[t])", inputs="a[H], b[H]",
        read="({0}) @ v[s] + a[t] * (1 - sum[s]({0}))",
    ),
    "a sink of the head": spec(f"softmax({PLAIN}, c)", params="c[H]", read="sum[s]({0}) * v[t]"),
    "no sink, and nothing to read": spec(
        f"softmax({PLAIN})", range="s < t", read="sum[s]({0}) * v[t]"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SUMS)
def test_they_are_what_was_written_and_folds(name: str) -> None:
    attend = attend_of(SUMS[name])
    known = {"T#": 17, "T_seen#": 17, "batch": 2, **SIZES}
    inputs, made = drawn(attend, known), of_totals(attend)
    assert all(isinstance(fold, WeightedSum) for fold in folded(made))
    assert not all(isinstance(fold, WeightedSum) for fold in folded(attend))
    ends = [evaluate_graph(each.body, inputs, known)["o"] for each in (attend, made)]
    assert distance(ends[1].detach(), ends[0].detach()) < 1e-13
    d = torch.randn_like(ends[0])
    slopes = [torch.autograd.grad(o, [*inputs.values()], d, materialize_grads=True) for o in ends]
    for plain, other in zip(*slopes, strict=True):
        assert other.isfinite().all() and float((plain - other).abs().max()) < 1e-12


MULTIPLIED = """layer Multiplied(d, H, K):
    input x[d]
    param W_q[d, H, K]; W_o[H, K, d]; U[H, H']
    q = x @ W_q
    attend s <= t over H:
        z = q[t].T @ q[s]
        o = softmax(z) @ q[s]
        l = logsumexp(z)
        m = l * o
    output y[d] = ({read}) @ W_o + (q * (l @ U)) @ W_o
"""


@pytest.mark.parametrize("read", ["m", "o * sigmoid(l)", "o * (l @ U)"])
def test_what_they_multiply_enters_products_in_bfloat16(read: str) -> None:
    exact = archc.parse(MULTIPLIED.format(read=read)).module(d=8, H=2, K=4, dtype=torch.float64)
    x = torch.randn(2, 9, 8, dtype=torch.float64)
    wanted = exact(x).detach()
    found = exact.bfloat16()(x.bfloat16()).detach()
    assert found.dtype == torch.bfloat16
    assert float((found - wanted).abs().max()) < 0.03 * float(wanted.abs().max())


NUMBERS = {
    "o": "relu(q[t].T @ k[s]) @ v[s] / sum[s](relu(q[t].T @ k[s]))",
    "sum[s](exp(q[t].T @ k[s])) * v[t]": "softmax(q[t].T @ k[s]) @ v[s]",
    "logsumexp(q[t].T @ k[s])": "softmax(q[t].T @ k[s]) @ v[s]",
    "sum[s](exp(q[t].T @ k[s] - g[t]))": "0 * v[t]",
    "sum[s](exp(q[t].T @ k[s] - logsumexp(q[t].T @ k[s])))": "0 * v[t]",
}
"""What else is a number for each reader, or made of such, and a vector."""


@pytest.mark.parametrize("number", NUMBERS)
def test_kernels_return_the_dtype_that_pytorch_returns(number: str) -> None:
    """They leave numbers of readers in float32, as logs of totals are; those of data are not."""
    text = f"""layer Both(H, K):
        input q[H, K], k[H, K], v[H, K], g[H]
        attend s <= t over H:
            o = {NUMBERS[number]}
            n = {number}
        output o
        output n
    """
    module: Any = loaded(text_of(archc.parse(text).layer, "triton"), "both")
    for name in [*vars(module)]:
        if name.endswith("_fake"):
            setattr(module, name.removesuffix("_fake"), vars(module)[name])
    kinds = []
    for run in (module.both_memory, module.both_memory_fold):
        names = [name for name in signature(run).parameters if name not in ("pos", "cu_seqlens")]
        shapes = [(1, 20, 2) if name[0] in "gl" else (1, 20, 2, 16) for name in names]
        kinds.append([x.dtype for x in run(*(torch.randn(s).bfloat16() for s in shapes), pos=0)])
    assert kinds[0] == kinds[1]


def test_another_attend_reads_them_with_all_their_digits() -> None:
    """Weights of a second attend add up to 1 where scores of tens are in bfloat16."""
    text = """layer Shares(d):
        input q[d], k[d]
        attend s <= t:
            l = logsumexp(q[t].T @ k[s])
        attend s <= t:
            one = sum[s](exp(q[t].T @ k[s] - l[t]))
        output one
    """
    generator = torch.Generator().manual_seed(0)
    q, k = (6 * torch.randn(2, 20, 8, generator=generator).bfloat16() for _ in "qk")
    one = archc.parse(text).module(d=8, dtype=torch.bfloat16)(q, k)
    assert (one.double() - 1).abs().max() < 5e-3
