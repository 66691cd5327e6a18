"""Formulas of what a spec says: brackets, signs of products, and which letters have a token."""

from __future__ import annotations

from pathlib import Path

import pytest

import archc
from archc.commands.stages import layer_of
from archc.derivation.as_written import attended, declared, formulas
from archc.derivation.mathml import as_mathml
from archc.derivation.typed import as_latex, as_plain
from archc.ir import layer as ir
from archc.verify.study import studies_of

SPEC = """layer Written(d):
    input x[d]
    param W, M[d, d']; A[d]
    a = sigmoid(A)
    b = sigmoid(sum[d](x * A))
    recurrence h[d]:
        h[t] = {update}
        o = {read}
    output y[d] = o + (x @ M) * (x @ W)
"""


def lines(update: str, read: str = "h[t]") -> list[str]:
    (study,) = studies_of(archc.parse(SPEC.format(update=update, read=read)).layer)
    return [as_plain(each.math) for each in formulas(study)]


@pytest.mark.parametrize(
    ("written", "printed"),
    [
        ("a * h[t-1] + x", "a ⊙ h_[t-1] + x_t"),
        ("b * h[t-1] - (x - A)", "b_t h_[t-1] − (x_t − A)"),
        ("(1 - b) * h[t-1] + b * x", "(1 − b_t) h_[t-1] + b_t x_t"),
        ("b * (a * h[t-1]) + -x", "b_t(a ⊙ h_[t-1]) + −x_t"),
        ("h[t-1] / (1 + b) + x", "h_[t-1] / (1 + b_t) + x_t"),
        ("h[t-1] / 2e-3 - x / 2", "(h_[t-1] / (2 · 10^−3)) − (x_t / 2)"),
        ("tanh(h[t-1]) ** 2 + sqrt(abs(x))", "(tanh(h_[t-1]))² + √|x_t|"),
        ("W @ (M @ h[t-1]) + x", "W(M h_[t-1]) + x_t"),
        ("W @ (a * h[t-1]) + x", "W(a ⊙ h_[t-1]) + x_t"),
        ("a * (W @ h[t-1]) + x", "a ⊙ (W h_[t-1]) + x_t"),
    ],
)
def test_brackets_and_signs(written: str, printed: str):
    assert lines(written)[0] == f"h_t = {printed}"


def test_every_bundled_kind_of_statement():
    """Statements that repeat, options that are words, and the update's name."""
    (study,) = studies_of(layer_of("gated_delta_product", {}))
    start, micro, update, read = formulas(study)
    assert as_plain(start.math) == "R_t = α_t S_[t-1]" and as_plain(update.math) == "S_t = R_t"
    assert micro.note == "for each j of n" and as_plain(micro.math).startswith("R_t ← (I − β_[t,j]")
    assert update.note == "update" and read.note == ""
    assert as_plain(read.math) == "o_t = S_tᵀ q_t / √K"
    assert r"\frac{{S_{t}}^{\top}q_{t}}{\sqrt{K}}" in as_latex(read.math).replace(r"\,", "")
    assert "<msqrt><mi>K</mi></msqrt>" in as_mathml(read.math)
    slstm = [each for study in studies_of(layer_of("slstm", {})) for each in formulas(study)]
    assert any('if forget = "sigmoid" else e_t' in as_plain(each.math) for each in slstm)


NEWCOMERS = Path(__file__).parents[1] / "newcomers"


def read(spec: str) -> list[str]:
    """The formulas of the attends of a spec."""
    graph = layer_of(spec, {}).graph
    attends = [node for node in graph if isinstance(node.op, ir.Attend)]
    return [as_plain(each.math) for node in attends for each in attended(graph, node)]


@pytest.mark.parametrize(
    ("spec", "printed"),
    [
        ("alibi", "o_t = ∑[s ≤ t] softmax_s((q_tᵀ k_s / √K) − slope(t − s)) v_s"),
        ("cross_attention", "o_t = ∑[m] softmax_m(q_tᵀ k_m / √K) v_m"),
        ("dsa", "I_[t,s] = ∑[HI] wi_t ⊙ relu(qi_t ki_s)"),
        ("fox", "score_[t,s] = q_tᵀ k_s / √K + ∑[r ∈ (s, t]] log f_r"),
        ("fox", "o_t = ∑[s ≤ t] softmax_s(score_[t,s]) v_s"),
        ("linear_attention_full", "o_t = ∑[s] p_[t,s] v_s / (∑[s] p_[t,s])"),
        ("nsa", "p_[t,b] = softmax_b(q_tᵀ k_[c,b] / √K)"),
        ("nsa", "o_[cmp,t] = ∑[end of b ≤ t] p_[t,b] v_[c,b]"),
        ("nsa", "o_[slc,t] = ∑[s ≤ t, s ∈ chosen_t] softmax_s(q_tᵀ k_s / √K) v_s"),
        ("path", "P_[t,s] = ∏[i ∈ (s, t]] (I − β_i w_i w_iᵀ)"),
        ("path", "o_t = ∑[s ≤ t] softmax_s(k_sᵀ P_[t,s] q_t / √K) v_s"),
        ("stick_breaking", "left_[t,s] = ∑[r ∈ (s, t]] where(r < t, log σ(−z_[t,r]), 0)"),
        ("deltaformer", "u_t = v_t − (∑[s < t] b_t softmax_s(w_tᵀ k_s / √K) u_s)"),
        ("log_linear", "o_t = ∑[s ≤ t] w_[t,s] q_tᵀ k_s v_s"),
    ],
)
def test_attends(spec: str, printed: str):
    """What is read stands under a sum; values of pairs have both tokens."""
    file = NEWCOMERS / f"{spec}.arch"
    assert printed in read(str(file) if file.exists() else spec)


LAW = """
layer Token(K):
    input b[], k[K]
    output P[K, K'] = I - b * k @ k.T

layer Merge(K):
    input P[K, K'], P'[K, K']
    output Q[K, K'] = P' @ P

layer Apply(K):
    input P[K, K'], h[K]
    mixed = P @ h
    output after[K] = 1 * mixed

layer Turned(K):
    input b[], k[K]
    chunk: law(Token, Merge, Apply)
    recurrence h[K] = 1:
        h[t] = (I - b * k @ k.T) @ h[t-1]
    output h
"""


def test_layers_of_a_law():
    """They know no tokens, and numbers of a token from vectors."""
    layer = archc.parse(LAW).layer
    op = next(node.op for node in layer.graph if isinstance(node.op, ir.Recurrence))
    (law,) = op.laws
    graphs = (op.body, law.merge, law.apply)
    found = [
        as_plain(each.math)
        for (_, _, header), graph in zip(law.named, graphs, strict=True)
        for each in declared(header, graph)
    ]
    assert found == ["P = I − b k kᵀ", "Q = P′ P", "mixed = P h", "after = 1 mixed"]
