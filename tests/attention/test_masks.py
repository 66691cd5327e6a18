"""Conditions on positions that scores and weights state by themselves, as bounds of reading."""

from __future__ import annotations

import pytest
import torch

from archc.attention.masks import in_masks
from archc.attention.weighted_sum import WeightedSum
from archc.compile import folded
from archc.ir.meaning import evaluate_graph
from archc.verify.fold_trial import distance, drawn
from tests.attention.cases import launch, packed, spec
from tests.attention.test_heads import Few
from tests.attention.test_multiplied_out import attend_of
from tests.few import but, few

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
APART = {
    "near": spec(f"where(abs(t - s) < w, {PLAIN}, -inf)", range="all s", sizes="w"),
    "near, the other way": spec(f"where(w > abs(s - t), sigmoid({PLAIN}), 0)", range="all s",
                                sizes="w", read="({}) @ v[s]"),
    "near, beside it": spec(f"{PLAIN} + where(abs(s - t) <= w, 0, -inf)", range="all s", sizes="w"),
}  # fmt: skip
"""Of two bounds where nothing else bounds them."""
KEPT = {
    "another number": spec(f"where(t - s < w, {PLAIN}, -9)", sizes="w"),
    "of a token": spec(f"where(a[s] > 0, {PLAIN}, -inf)", inputs="a[H]", sizes="w"),
}
UNIONS = {
    "window, sink": spec(f"where(t - s < w or s < 2, {PLAIN}, -inf)", sizes="w"),
    "said twice": spec(f"where(t - s < w, {PLAIN}, where(s < 2, {PLAIN} / 2, -inf))", sizes="w"),
    "left out": spec(f"where(t - s >= w and s >= 2, -inf, {PLAIN})", sizes="w"),
    "one within": spec(f"where(s < 2, {PLAIN} / 2, where(t - s < w, {PLAIN}, -inf))", sizes="w"),
    "three": spec(f"where(t - s < w or s < 2 or t - s == 30, {PLAIN}, -inf)", sizes="w"),
    "both ways": spec(f"where(abs(t - s) < w or s < 2, {PLAIN}, -inf)", range="all s", sizes="w"),
    "far apart": spec(f"where(abs(t - s) >= 80, {PLAIN}, -inf)", range="all s"),
    "weights": spec(f"where(t - s < w or s < 2, sigmoid({PLAIN}), 0)", sizes="w",
                    read="({}) @ v[s]"),
    "far away": spec(
        f"where(t - s < w and s < t + 3 or s < 2 and t - s > 30, {PLAIN}, -inf)", range="all s",
        sizes="w",
    ),
}  # fmt: skip
OPEN = ("three", "far apart")
"""Unions of which one range has no bound that is seen, so that every block of it is walked, and one
that reads other blocks than the rest."""
BOUNDED = [name for name in UNIONS if name not in OPEN]


@pytest.mark.parametrize("name", [*MASKED, *APART, *KEPT, *UNIONS])
def test_it_is_what_was_written(name: str) -> None:
    attend = attend_of((MASKED | APART | KEPT | UNIONS)[name])
    known = {"T#": 17, "T_seen#": 17, "batch": 2, **SIZES}
    inputs = drawn(attend, known)
    ends = [evaluate_graph(a.body, inputs, known)["o"] for a in (attend, in_masks(attend))]
    assert distance(ends[1].detach(), ends[0].detach()) < 1e-13
    d = torch.randn_like(ends[0])
    slopes = [torch.autograd.grad(o, [*inputs.values()], d, materialize_grads=True) for o in ends]
    assert all(distance(x, y) < 1e-11 for x, y in zip(*slopes, strict=True))


@pytest.mark.parametrize("name", [*MASKED, *APART, *KEPT])
def test_blocks_outside_are_not_walked(name: str) -> None:
    (fold,) = folded(in_masks(attend_of((MASKED | APART | KEPT)[name])))
    assert isinstance(fold, WeightedSum)
    assert len(fold.bounds) == (1 if name in KEPT else 2)


@pytest.mark.parametrize(("name", "w"), [("where", 5), ("nested", 4.5), ("weights", 1)])
def test_values_and_gradients(name: str, w: float) -> None:
    """A width that is no size may be no whole number."""
    launch(MASKED[name], 40, **{**SIZES, "w": w}).check()


@pytest.mark.default("2")
@pytest.mark.parametrize("name", APART)
@pytest.mark.parametrize("w", [-3, 2, 5])
def test_values_and_gradients_of_tokens_that_are_near(name: str, w: float) -> None:
    launch(APART[name], 40, **{**SIZES, "w": w}).check()


LARGE = ("said twice", "left out", "three", "weights")
"""Those that are the same sums as others, written in another way."""


@pytest.mark.default("window, sink", "both ways")
@pytest.mark.parametrize("name", but(UNIONS, LARGE))
def test_values_and_gradients_of_unions(name: str) -> None:
    launch(UNIONS[name], 100, **SIZES).check()
    launch(UNIONS[name], 7, **SIZES).check()
    packed(UNIONS[name], (0, 0, 1, 60, 61, 97), **SIZES).check()


@pytest.mark.parametrize("readers", [1, 16])
@pytest.mark.parametrize("name", few(BOUNDED, ["window, sink", "far away"]))
def test_blocks_outside_of_a_union_are_not_walked(name: str, readers: int) -> None:
    """What is behind the first blocks and before those of the window may be no number."""
    case = launch(UNIONS[name], 112, **SIZES)
    (wanted,) = case.values(case.fold.node)
    case.inputs["v"].data[:, 16:80] = float("nan")
    found = Few(case, readers, 3).run()["o"]
    right = case.as_made(wanted.detach())[:, -readers:]
    torch.testing.assert_close(found, right, rtol=1e-11, atol=1e-12)


@pytest.mark.default("window, sink")
@pytest.mark.parametrize("name", few(BOUNDED, ["window, sink", "far away"]))
def test_readers_outside_of_a_union_are_not_walked(name: str) -> None:
    """What arrives at readers that read nothing of a block of tokens may be no number."""
    case = launch(UNIONS[name], 112, **SIZES)
    case.forward()
    d = torch.randn(case.as_made(*case.values(case.fold.node)).shape).double()
    wanted = case.gradients(d.clone())["v"]
    d[:, 64:] = float("nan")
    assert torch.equal(case.gradients(d)["v"][:, 16:48], wanted[:, 16:48])


@pytest.mark.parametrize(("w", "g"), [(0, 0), (0, 2), (3, 0), (-4, 50)])
def test_a_union_of_ranges_in_which_nothing_is(w: int, g: int) -> None:
    """A reader that no range has a token for gets 0, and no gradient is NaN."""
    text = spec(f"where(t - s < w or s < g, {PLAIN}, -inf)", sizes="w, g")
    launch(text, 40, **{**SIZES, "w": w, "g": g}).check()
