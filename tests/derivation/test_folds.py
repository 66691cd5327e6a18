"""Sums over the tokens read on pages: the score typeset, its gradient, and numbers that are run."""

from __future__ import annotations

import pytest

from archc.attention.weighted_sum import WeightedSum
from archc.compile import folded
from archc.derivation.fold_formulas import FoldFormulas
from archc.derivation.typed import as_plain
from archc.verify.fold_trial import FoldTrial, fold_checks
from tests.attention.cases import pair_of
from tests.attention.test_folds import SCORES

DOT = "q_tᵀ k_s / √K"


@pytest.mark.parametrize(
    ("name", "score", "slope"),
    [
        ("capped", "cap tanh(q_tᵀ k_s / (cap √K))",
         "(1 − (tanh(q_tᵀ k_s / (cap √K)))²) cap dz_[t,s] / (cap √K)"),
        ("forgetting", f"{DOT} + ∑[r = s + 1..t] g_r", "dz_[t,s] / √K"),
        ("log of the distance", f"({DOT}) − rate log(max(1 + t − s, 1))", "dz_[t,s] / √K"),
        ("gated by both", "sigmoid(a_t + b_s) q_tᵀ k_s / √K", "sigmoid(a_t + b_s)(dz_[t,s] / √K)"),
        ("squared, unnormalised", "(relu(q_tᵀ k_s / √K))² / (1 + t)", None),
        ("a table by distance", f"{DOT} + bias [min(t − s, W − 1) if s ≤ t, else 0]",
         "dz_[t,s] / √K"),
        ("two products", f"{DOT} + p_tᵀ m_s", "dz_[t,s] / √K"),
    ],
)  # fmt: skip
def test_scores_as_formulas(name: str, score: str, slope: str | None) -> None:
    """What enters has the spec's names, whatever kernels call it."""
    attend = pair_of(SCORES[name][0])
    (fold,) = folded(attend)
    assert isinstance(fold, WeightedSum)
    formulas = FoldFormulas(fold, attend.body)
    assert as_plain(formulas.output("score")) == score
    (first, made), *_ = formulas.learned()
    assert first == "product" and (slope is None or as_plain(made) == slope)


def test_a_wrong_program_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers of a page come from programs that are run: with another one, they are off."""
    attend = pair_of(SCORES["plain"][0])
    (fold,) = folded(attend)
    assert isinstance(fold, WeightedSum)
    sizes = {"H": 2, "K": 3, "V": 4}
    values, gradients = fold_checks(fold, attend, sizes)
    assert values.error() <= values.limit and gradients.error() <= gradients.limit
    right = FoldTrial.sources
    monkeypatch.setattr(
        FoldTrial, "sources", lambda trial: {n: x * 1.01 for n, x in right(trial).items()}
    )
    assert values.error() > values.limit and gradients.error() > gradients.limit
