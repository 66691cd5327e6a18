"""Sums over the tokens read on pages: the score typeset, its gradient, and numbers that are run."""

from __future__ import annotations

import pytest
from torch import Tensor

import archc
from archc.attention.weighted_sum import WeightedSum
from archc.compile import folded
from archc.derivation.fold_formulas import FoldFormulas
from archc.derivation.page import Checked, Formula
from archc.derivation.step_between import between_steps
from archc.derivation.typed import as_plain
from archc.runtime.between import Given
from archc.show.attends import attends_of
from archc.verify.choice_trial import ChoiceTrial
from archc.verify.fold_numbers import fold_checks, tree_checks
from archc.verify.fold_trial import FoldTrial
from tests.attention.cases import pair_of
from tests.attention.test_folds import SCORES
from tests.few import slow

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


@pytest.mark.parametrize(
    ("spec", "names"), [slow(("dsa", ("o",))), ("nsa", ("o_cmp", "o_slc", "o_win"))]
)
def test_numbers_of_what_readers_choose(spec: str, names: tuple[str, ...]) -> None:
    """Of chosen tokens, of chosen blocks, and of blocks of tokens; off where a program is told
    other lists than the mask has."""
    sizes = {"G": 2, "H": 6, "K": 3, "R": 4, "V": 5, "C": 6, "size": 6, "stride": 3, "pick": 4}
    found = {each.name: each for each in attends_of(archc.load(spec).layer) if each.name in names}
    assert found.keys() == {*names}
    for each in found.values():
        assert each.fold is not None and each.attend is not None
        checks = [*fold_checks(each.fold, each.attend, {**sizes, "w": 9})]
        assert len(checks) == 2 and all(c.error() <= c.limit for c in checks), each.name


def test_wrong_lists_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    (told,) = [each for each in attends_of(archc.load("dsa").layer) if each.name == "o"]
    assert told.fold is not None and told.attend is not None
    sizes = {"H": 2, "K": 3, "R": 4, "V": 5, "C": 6}
    checks = [*fold_checks(told.fold, told.attend, sizes)]
    right = ChoiceTrial.lists

    def fewer(trial: ChoiceTrial) -> dict[str, Tensor]:
        found = right(trial)
        return found | {"count": (found["count"] - 1).clamp(min=0)}

    monkeypatch.setattr(ChoiceTrial, "lists", fewer)
    assert all(check.error() > check.limit for check in checks)


@pytest.mark.parametrize(
    ("spec", "score", "moved"),
    [
        ("path", "k_sᵀ(∏[r = s + 1..t] M_r) q_t / √K", "q_[t,b] = (∏[r = b..t] M_r) q_t"),
        ("tests/newcomers/channel_gates.arch", "(q_t ⊙ exp(∑[r = s + 1..t] g_r))ᵀ k_s / √K",
         "q_[t,b] = q_t ⊙ ∏[r = b..t] exp(g_r)"),
    ],
)  # fmt: skip
def test_a_tree_of_spans(
    spec: str, score: str, moved: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A score through what is between: typeset, with numbers of programs that are run."""
    layer = archc.load(spec).layer
    (told,) = [each for each in attends_of(layer) if each.tree is not None]
    assert told.tree is not None and told.attend is not None
    steps = [*between_steps(layer, told.tree, told.attend, "o")]
    formulas = [as_plain(b.math) for s in steps for b in s.blocks if isinstance(b, Formula)]
    assert {f"z_[t,s] = {score}", moved, "dz_[t,s] = p_[t,s](do_tᵀ v_s − δ_t)"} <= {*formulas}
    checks = [block for step in steps for block in step.blocks if isinstance(block, Checked)]
    assert len(checks) == 2 and all(check.right for check in checks)
    right = Given.__new__
    monkeypatch.setattr(
        Given, "__new__", lambda cls, sources, *more: right(cls, [x * 1.01 for x in sources], *more)
    )
    wrong = tree_checks(told.tree, told.attend, {"d": 6, "H": 2, "K": 3, "V": 5})
    assert all(check.error() > check.limit for check in wrong)
