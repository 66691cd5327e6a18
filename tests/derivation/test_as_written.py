"""Formulas of what a spec says: brackets, signs of products, and which letters have a token."""

from __future__ import annotations

import pytest

import archc
from archc.commands.stages import layer_of
from archc.derivation.as_written import formulas
from archc.derivation.mathml import as_mathml
from archc.derivation.typed import as_latex, as_plain
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
