"""Softmaxes that are parts of other weights, which kernels make of the log of their totals."""

from __future__ import annotations

import pytest
import torch

from archc.attention.inner_softmax import without_parts
from archc.attention.weighted_sum import WeightedSum
from archc.compile import folded
from archc.ir.meaning import evaluate_graph
from archc.verify.fold_trial import distance, drawn
from tests.attention.cases import pair_of, spec
from tests.attention.test_multiplied_out import attend_of

PLAIN = "q[t].T @ k[s] / sqrt(K)"
SIZES = {"H": 2, "K": 3, "V": 4}
WEIGHTS = {
    "squared": spec(read="(softmax({}) ** 2) @ v[s]"),
    "twice": spec(read="(softmax({0}) * (1 - softmax({0}))) @ v[s]", range="s < t"),
    "with a sink": spec(f"softmax({PLAIN}, c[t])", inputs="c[H]", read="relu({} - 0.05) @ v[s]"),
    "a share of it": spec(read="where(t - s < 4, softmax({}), 0) @ v[s]"),
    "a share by its score": spec(read="where({0} > 0, softmax({0}) * t, 0) @ v[s]"),
    "entropy": spec(read="sum[s](softmax({0}) * log(softmax({0}) + 1e-6)) * v[t]"),
    "in a score": spec(read="softmax(where(t - s < 5, softmax({0}), 0) * 9) @ v[s]"),
    "of two experts": spec(
        read="(softmax({0}) * softmax(where(t - s < 5, c[s] * {0}, -inf))) @ v[s]", inputs="c[H]",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WEIGHTS)
def test_they_are_what_was_written_and_folds(name: str) -> None:
    attend = attend_of(WEIGHTS[name])
    known = {"T#": 17, "T_seen#": 17, "batch": 2, **SIZES}
    inputs, made = drawn(attend, known), without_parts(attend)
    assert not all(isinstance(fold, WeightedSum) for fold in folded(attend))
    assert all(isinstance(fold, WeightedSum) for fold in folded(pair_of(WEIGHTS[name])))
    ends = [evaluate_graph(each.body, inputs, known)["o"] for each in (attend, made)]
    assert distance(ends[1].detach(), ends[0].detach()) < 1e-13
    d = torch.randn_like(ends[0])
    slopes = [torch.autograd.grad(o, [*inputs.values()], d, materialize_grads=True) for o in ends]
    for plain, other in zip(*slopes, strict=True):
        assert other.isfinite().all() and float((plain - other).abs().max()) < 1e-12


def test_weights_that_are_a_softmax_stay_as_they_are() -> None:
    for read in ("softmax({}) @ v[s]", "(softmax({0}) * tanh({0})) @ v[s]"):
        attend = attend_of(spec(read=read))
        assert without_parts(attend) is attend


NUMBERS = {
    "whole numbers": "where({} > c[t], 1, 0) @ v[s]",
    "conditions": "({} > c[t]) @ v[s]",
    "a softmax times a condition": "(softmax({}) * (s < t)) @ v[s]",
    "how many": "sum[s](where({} > c[t], 1, 0)) * v[t]",
}


@pytest.mark.parametrize("name", NUMBERS)
def test_weights_that_are_no_reals_are_folds(name: str) -> None:
    text = spec(read=NUMBERS[name], inputs="c[H]")
    assert all(isinstance(fold, WeightedSum) for fold in folded(pair_of(text)))
