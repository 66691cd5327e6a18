"""Layers in layers, memories in routes: what drawn programs found."""

from __future__ import annotations

import pytest
import torch

import archc
from archc.diagnostics import ArchError

AROUND = """
block Around(p, inside):
    input x[p]
    param v[p]
    output y[p] = x + inside(tanh(x)) * v

block Scaled(d):
    input x[d], g[d]
    output y[d] = x * g

layer Whole(d, mine):
    input x[d]
    param n[d]
    output y[d] = {} + n
"""

UNREAD = """
layer Whole(d, D, K, V):
    input x[d]
    param r[d, D]; wk[D, d, K]; wv[D, d, V]; wo[D, d]
    p = softmax[D](x @ r)
    route e in top(1, p):
        k = x @ wk[e]
        v = x @ wv[e]
        recurrence S[K, V]:
            S[t] = 0.5 * S[t-1] + k @ v.T
            o = S[t].T @ k
    output y[d] = p @ wo
"""

LOOPS = """
layer Whole(d):
    input x[d]
    h = x
    repeat 2 as l:
        param w[d]
        {}
    output y[d] = h
"""


def inner(v: dict[str, torch.Tensor], pass_: int, h: torch.Tensor, plus: str = "") -> torch.Tensor:
    """The loop in a pass: `* v`, and more."""
    for place in range(2):
        h = h * v[f"layers.{pass_}.layers.{place}.v"] + (v[f"layers.{pass_}.w"] if plus else 0)
    return h


def test_loops_in_loops() -> None:
    """A loop that carries what the loop around it carries, or a name of that loop's own."""
    x = torch.randn(2, 4, 3)
    loop = "repeat 2 as m:\n            param v[d]\n            {0} = {0} * v{1}"
    layer = archc.parse(LOOPS.format(loop.format("h", " + w"))).module(d=3)
    weights = {name: p.data.normal_() for name, p in layer.named_parameters()}
    torch.testing.assert_close(layer(x), inner(weights, 1, inner(weights, 0, x, "w"), "w"))

    text = f"u = tanh(h * w)\n        {loop.format('u', '')}\n        h = h + u"
    layer, h = archc.parse(LOOPS.format(text)).module(d=3), x
    weights = {name: p.data.normal_() for name, p in layer.named_parameters()}
    for pass_ in range(2):
        h = h + inner(weights, pass_, torch.tanh(h * weights[f"layers.{pass_}.w"]))
    torch.testing.assert_close(layer(x), h)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        ("Around(d)(mine(x))", "`Around` needs a layer for `inside`"),
        ("Around(d, inside = mine)(mine(x))", "`mine` cannot be handed on"),
        ("Scaled(d)(x, n)", "`g` of `Scaled` is a value per token, and gets one that all tokens"),
    ],
)
def test_a_layer_that_is_not_given(call: str, says: str) -> None:
    """The class would not have been made: TypeError. Nor is a value given that has no tokens."""
    with pytest.raises(ArchError, match="E0311") as refused:
        archc.parse(AROUND.format(call))
    assert says in str(refused.value)


@pytest.mark.filterwarnings("ignore::archc.diagnostics.ArchWarning")
def test_a_memory_in_a_route_that_nothing_reads() -> None:
    assert archc.parse(UNREAD).module(d=2, D=3, K=2, V=2)


HEADS = """
layer Heads(d, H, K, E, n = 2):
    input x[d], a[H, K]
    param R[d, H, E]; W[E, H, K, d]
    p = sigmoid(x @ R)
    route e in top(n, p):
        {}
    output y[d] = sum[H](z)
"""


def test_experts_of_each_head_are_summed_behind_the_route() -> None:
    """Inside of it, every head would weigh what was made for all of them."""
    with pytest.raises(ArchError) as refused:
        archc.parse(HEADS.format("z = tanh(a @ W[e])"))
    assert [finding.code for finding in refused.value.diagnostics] == ["E0319"]
    layer = archc.parse(HEADS.format("z = sum[K](a * W[e])")).module(
        d=3, H=2, K=4, E=3, dtype=torch.float64
    )
    x, a = (torch.randn(2, 5, *shape, dtype=torch.float64) for shape in ((3,), (2, 4)))
    p = torch.einsum("btd,dhe->bthe", x, layer.R).sigmoid()
    best = torch.zeros_like(p).scatter(-1, p.topk(2, -1).indices, 1) * p
    expected = torch.einsum("bthe,bthk,ehkd->btd", best, a, layer.W)
    torch.testing.assert_close(layer(x, a), expected)


UNSUMMED = """
layer Latents(d, N):
    input x[d]
    param P[d, N]
    z = x @ P
    attend {}:
        w = softmax(z[s])
        u = {}
    output y[d] = sum[N](u)
"""


@pytest.mark.parametrize("range", ["all s", "s <= t"])
def test_rows_of_weights_are_summed_over_the_tokens_read(range: str) -> None:
    """A matrix for each token read is none of the reader's, and would pass for it."""
    with pytest.raises(ArchError) as refused:
        archc.parse(UNSUMMED.format(range, "w @ x[s].T"))
    (finding,) = refused.value.diagnostics
    assert finding.code == "E0309"
    assert finding.helps[0].endswith("`u = sum[s](...)`")
    layer = archc.parse(UNSUMMED.format(range, "sum[s](w @ x[s].T)")).module(d=3, N=2)
    x = torch.randn(2, 5, 3)
    late = torch.ones(5, 5).triu(1).bool() if range == "s <= t" else torch.zeros(5, 5).bool()
    z = (x @ layer.P)[:, None].expand(-1, 5, -1, -1).masked_fill(late[..., None], -torch.inf)
    expected = torch.einsum("btsn,bsd->btd", z.softmax(2), x)
    expected = expected[:, 0] if range == "all s" else expected  # the same for all readers
    torch.testing.assert_close(layer(x), expected)
