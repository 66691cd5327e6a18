"""Conditions on positions that scores and weights state by themselves, as bounds of reading."""

from __future__ import annotations

import pytest
import torch

from archc.attention.masks import in_masks
from archc.attention.weighted_sum import WeightedSum
from archc.compile import folded
from archc.ir.meaning import evaluate_graph
from archc.verify.fold_trial import distance, drawn
from tests.attention.cases import launch, spec
from tests.attention.test_multiplied_out import attend_of

PLAIN = "q[t].T @ k[s] / sqrt(K)"
SIZES = {"H": 2, "K": 20, "V": 24, "w": 5}

MASKED = {
    "where": spec(f"where(t - s < w, {PLAIN}, -inf)", sizes="w"),
    "where, the other way": spec(f"where(s <= t - w, -inf, {PLAIN})", sizes="w"),
    "added": spec(f"{PLAIN} + where(t - s >= w, -inf, 0)", sizes="w"),
    "nested": spec(f"where(t - s < w, where(s % 2 == 0, {PLAIN}, -inf), -inf)", sizes="w"),
    "weights": spec(f"where(w > t - s, sigmoid({PLAIN}), 0)", sizes="w", read="({}) @ v[s]"),
    "its total": spec(f"where(t - s < w, {PLAIN}, -inf)", sizes="w", read="logsumexp({}) * v[t]"),
}
KEPT = {
    "another number": spec(f"where(t - s < w, {PLAIN}, -9)", sizes="w"),
    "of a token": spec(f"where(a[s] > 0, {PLAIN}, -inf)", inputs="a[H]", sizes="w"),
    "two ranges": spec(
        f"where(t - s < w, {PLAIN}, where(s < 2, {PLAIN}, -inf))", sizes="w",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", [*MASKED, *KEPT])
def test_it_is_what_was_written(name: str) -> None:
    attend = attend_of((MASKED | KEPT)[name])
    known = {"T#": 17, "T_seen#": 17, "batch": 2, **SIZES}
    inputs = drawn(attend, known)
    ends = [evaluate_graph(a.body, inputs, known)["o"] for a in (attend, in_masks(attend))]
    assert distance(ends[1].detach(), ends[0].detach()) < 1e-13
    d = torch.randn_like(ends[0])
    slopes = [torch.autograd.grad(o, [*inputs.values()], d, materialize_grads=True) for o in ends]
    assert all(distance(x, y) < 1e-11 for x, y in zip(*slopes, strict=True))


@pytest.mark.parametrize("name", [*MASKED, *KEPT])
def test_blocks_outside_are_not_walked(name: str) -> None:
    (fold,) = folded(in_masks(attend_of((MASKED | KEPT)[name])))
    assert isinstance(fold, WeightedSum)
    assert len(fold.bounds) == (2 if name in MASKED else 1)


@pytest.mark.parametrize(("name", "w"), [("where", 5), ("nested", 4.5), ("weights", 1)])
def test_values_and_gradients(name: str, w: float) -> None:
    """A width that is no size may be no whole number."""
    launch(MASKED[name], 40, **{**SIZES, "w": w}).check()
