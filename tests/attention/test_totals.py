"""The log of the sum of a softmax's weights as a result: alone, or beside what they weight."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

import archc
from archc.api import parse
from archc.attention.recognise import folds
from archc.attention.weighted_sum import Refusal, WeightedSum
from archc.compile import lowered, slopes_of
from archc.ir import layer as ir
from archc.verify.fold_trial import distance
from tests.attention.cases import launch, packed, pair_of
from tests.attention.test_heads import Few

SIZES = {"H": 4, "G": 2, "K": 20, "V": 24}
SCORES = {
    "plain": "q[t].T @ k[s] / sqrt(K)",
    "capped": "softcap(q[t].T @ k[s] / sqrt(K), 3)",
    "forgetting": "q[t].T @ k[s] / sqrt(K) + sum r in (s, t]: g[r]",
}
BORDERS = (0, 0, 1, 4, 37, 37, 55)


BOTH = "softmax(z) @ v[s]"


def spec(score: str, range: str = "s <= t", sizes: str = "", read: str = BOTH) -> str:
    """A layer that gives both, or the total alone where nothing is read."""
    weighted = f"        o = {read}\n" if read else ""
    return (
        f"layer Totals(H, G, K, V{sizes}):\n"
        "    input q[H, K], k[G, K], v[G, V], g[H]\n"
        f"    attend {range} over H grouped G:\n"
        f"        z = {score}\n{weighted}        l = logsumexp(z)\n"
        + "    output o\n" * bool(read)
        + "    output l\n"
    )


@pytest.mark.parametrize("score", SCORES.values(), ids=SCORES)
@pytest.mark.parametrize("read", [BOTH, ""], ids=["both", "alone"])
def test_values_and_gradients(score: str, read: str):
    case = launch(spec(score, read=read), 50, **SIZES)
    assert case.fold.total is not None and case.fold.alone == (not read)
    case.check()
    packed(spec(score, read=read), BORDERS, **SIZES).check()


@pytest.mark.parametrize("read", [BOTH, ""], ids=["both", "alone"])
def test_nothing_to_read_is_minus_infinity_and_has_no_gradient(read: str):
    text = spec(SCORES["plain"], "t - w < s <= t - 2", ", w", read)
    case = launch(text, 37, **SIZES, w=30)
    case.check()
    lse = case.forward()["lse"]
    assert (lse[..., :2] == -torch.inf).all() and lse[..., 2:].isfinite().all()


def test_scores_that_are_all_minus_infinity():
    """A token is read, but its weight is 0: the total is -inf, and no gradient is NaN."""
    text = spec("where(g[t] > 0, q[t].T @ k[s], -inf)")
    case = launch(text, 20, **SIZES)
    case.check()
    assert (case.forward()["lse"] == -torch.inf).any()


def test_another_total_than_that_of_the_weights_is_a_fold_of_its_own():
    text = (
        "layer Two(H, K, V):\n    input q[H, K], k[H, K], v[H, V]\n    param sink[H]\n"
        "    attend s <= t over H:\n        z = q[t].T @ k[s]\n"
        "        o = softmax(z, sink) @ v[s]\n        l = logsumexp(z)\n"
        "    output o\n    output l\n"
    )
    weighted, total = folds(pair_of(text), slopes_of)
    assert isinstance(weighted, WeightedSum) and isinstance(total, WeightedSum)
    assert weighted.total is None and total.alone


def test_of_chosen_tokens_it_is_refused_with_a_reason():
    text = (
        "layer Chosen(H, K, n):\n    input q[H, K], k[K], i[K]\n"
        "    index s <= t:\n        chosen = top(n, i[t].T @ i[s])\n"
        "    attend s <= t in chosen over H:\n        l = logsumexp(q[t].T @ k[s])\n    output l\n"
    )
    graph = lowered(parse(text).layer).graph
    _, attend = (node.op for node in graph if isinstance(node.op, ir.Attend))
    (found,) = folds(attend, slopes_of)
    assert isinstance(found, Refusal) and "chosen" in found.reason


MERGED = """layer Merged(H, K, w):
    input q[H, K], k[H, K], v[H, K]
    attend t - w < s <= t over H:
        z = q[t].T @ k[s] / sqrt(K)
        near = softmax(z) @ v[s]
        l = logsumexp(z)
    attend s <= t - w over H:
        y = q[t].T @ k[s] / sqrt(K)
        far = softmax(y) @ v[s]
        m = logsumexp(y)
    share = sigmoid(l - m)
    output o[H, K] = share * near + (1 - share) * far
"""


def test_two_ranges_are_joined_by_their_totals():
    """Values and gradients are those of one attention to all, where one range is empty too."""
    made = archc.parse(MERGED).module(H=2, K=8, w=7)
    q, k, v = (torch.randn(2, 30, 2, 8, requires_grad=True) for _ in range(3))
    whole = F.scaled_dot_product_attention(
        q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True
    ).transpose(1, 2)
    found, weight = made(q, k, v), torch.randn(2, 30, 2, 8)
    torch.testing.assert_close(found, whole)
    slopes = [torch.autograd.grad((x * weight).sum(), (q, k, v)) for x in (found, whole)]
    torch.testing.assert_close(*slopes)


def test_over_a_dim_it_is_torchs():
    made = archc.parse("layer Over(d):\n    input x[d]\n    output y[] = logsumexp[d](x)\n").module(
        d=6
    )
    x = 50 * torch.randn(2, 5, 6)
    torch.testing.assert_close(made(x), x.logsumexp(-1))


@pytest.mark.parametrize("read", [BOTH, ""], ids=["both", "alone"])
def test_parts_of_what_few_readers_read(read: str):
    case = launch(spec(SCORES["plain"], "s < t", read=read), 40, **SIZES)
    few = Few(case, 40, 3)
    for name, x in zip(case.made, case.values(*case.fold.nodes), strict=True):
        found, wanted = few.run()[name], case.as_made(x.detach(), name)
        assert (found[..., 0] == wanted[..., 0]).all() or name == "o"
        assert distance(found[..., 1:], wanted[..., 1:]) < 1e-12
