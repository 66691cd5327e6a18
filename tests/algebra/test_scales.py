"""Scales of scores move to the queries; gains and joined products are weighed and left."""

from __future__ import annotations

import pytest

import archc
from archc.algebra.absorb import absorb
from archc.algebra.decisions import as_text, decisions
from archc.algebra.scales import scaled_queries
from archc.algebra.simplify import simplify
from archc.ir import layer as ir
from tests.algebra.test_absorb import agree, decoding

TEXT = """layer Made(d, H, K = 8):
    input x[d]
    param A, B, N[d, H, K]; O[H, K, d]{more}
    q = x @ A
    k = x @ B
    v = x @ N
    attend s <= t over H:
        a = softmax({score})
        o = a @ v[s]
    output y[d] = o @ O"""


def made(score: str) -> ir.Layer:
    text = TEXT.format(score=score, more="; tau[H]" if "tau" in score else "")
    return simplify(archc.parse(text).layer)


def scaled_pairs(layer: ir.Layer) -> list[ir.Node]:
    """Multiplications and quotients for each pair of tokens."""
    bodies = [node.op.body for node in layer.graph if isinstance(node.op, ir.Attend)]
    return [
        node
        for body in bodies
        for node in body
        if node.op in (ir.Elementwise("mul"), ir.Elementwise("div"))
        and {"t", "s"} <= set(node.type.names)
    ]


SCORES = {
    "divided": "q[t].T @ k[s] / sqrt(K)",
    "multiplied": "3 * (q[t].T @ k[s])",
    "a temperature for each head": "tau * (q[t].T @ k[s])",
    "a temperature behind": "(q[t].T @ k[s]) * tau",
    "a sum": "(q[t].T @ k[s] + v[t].T @ k[s]) / sqrt(K)",
}


@pytest.mark.parametrize("score", SCORES)
def test_a_scale_of_scores_moves_to_the_queries(score: str) -> None:
    before = made(SCORES[score])
    after = scaled_queries(before)
    assert scaled_pairs(before) and not scaled_pairs(after)
    agree(before, after)
    assert scaled_queries(after) is after


@pytest.mark.parametrize(
    "score",
    [
        "q[t].T @ k[s]",
        "tanh(q[t].T @ k[s]) * 3",
        "(q[t].T @ k[s] - 1) / 3",
        "tau / (9 + q[t].T @ k[s])",
        "tau / (q[t].T @ k[s])",
        "3 / (q[t].T @ k[s])",
        "3 / (q[t].T @ k[s] + v[t].T @ k[s])",
    ],
)
def test_what_no_query_can_take_stays(score: str) -> None:
    """What is divided by scores is no scale of theirs, either."""
    layer = made(score)
    assert scaled_queries(layer) is layer


def test_a_latent_is_absorbed_with_the_scale_on_its_queries() -> None:
    before = simplify(archc.load("mla").layer)
    after = absorb(scaled_queries(before))
    assert not scaled_pairs(after)
    assert not scaled_pairs(decoding(after))
    agree(before, after, decoding(after))


def test_every_decision_has_a_way_that_is_taken() -> None:
    found = decisions(simplify(archc.load("mla").layer))
    assert [decision.what for decision in found] == [
        "what an attention keeps",
        "the gain g_kv",
        "the gain g_q",
        "the scale of scores",
        "products of x with W_DKV, W_KR, W_DQ",
        "products of c with W_UK, W_UV",
        "products of c_q with W_UQ, W_QR",
    ]
    for decision in found:
        names = {option.name for option in decision.options}
        assert decision.chosen.split(" | ") and set(decision.chosen.split(" | ")) <= names
    text = as_text(found)
    assert "`scale queries`: fewer where T_seen > K + R" in text
    assert "  * apart\n      flops  2*T*d*(C + Q + R)" in text


def test_joined_products_take_as_many_operations_and_other_bytes() -> None:
    found = decisions(made("q[t].T @ k[s]"))
    (decision,) = [d for d in found if d.what == "products of x with A, B, N"]
    apart, joined = decision.options
    assert apart.flops == joined.flops
    sizes = {str(size): size for size in apart.bytes.free_symbols}
    d, H, K, T = (sizes[name] for name in ("d", "H", "K", "T#"))
    assert (joined.bytes - apart.bytes).expand() == 2 * (6 * d * H * K - 2 * d * T)
