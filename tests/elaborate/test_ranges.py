"""`none` for no bound in the range of an `attend`."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor

import archc
from tests.elaborate import forms
from tests.elaborate.forms import randn
from tests.elaborate.specs import refusal

WINDOW = """layer Window(K, w = {default}):
    input q[K], k[K], v[K]
    attend {range}:
        o = softmax(q[t].T @ k[s]) @ v[s]
    output o
"""


def attention(q: Tensor, k: Tensor, v: Tensor, reach: int | None, back: bool = False) -> Tensor:
    """Softmax attention over the latest tokens, or over all of the past, or of the sequence."""
    at = torch.arange(q.shape[1])
    apart = at[:, None] - at
    allowed = (apart >= 0) if not back else torch.ones_like(apart, dtype=torch.bool)
    if reach is not None:
        allowed &= apart.abs() < reach
    scores = (q @ k.mT).masked_fill(~allowed, -torch.inf)
    return scores.softmax(-1) @ v


@pytest.mark.parametrize(("default", "given"), [("none", 3), ("3", None), ("none", None)])
def test_a_window_that_is_none_is_all_of_the_past(default: str, given: int | None) -> None:
    inputs = {name: randn(4, seed=seed) for seed, name in enumerate("qkv")}
    text = WINDOW.format(default=default, range="t - w < s <= t")
    forms.same(text, inputs, partial(attention, reach=given), {"w": given}, K=4)


@pytest.mark.default("(3 if l > 0 else none)-0-None")
@pytest.mark.parametrize(
    ("end", "layer", "reach"),
    [
        ("(3 if l > 0 else none)", 0, None),
        ("(3 if l > 0 else none)", 1, 3),
        ("(w if w != none else 3)", 0, 3),
    ],
)
def test_the_none_of_a_branch_that_is_not_taken_opens_no_end(
    end: str, layer: int, reach: int | None
) -> None:
    """`w = none` mentions none too, where the other branch is taken."""
    inputs = {name: randn(4, seed=seed) for seed, name in enumerate("qkv")}
    text = WINDOW.format(default="none, l = 1", range=f"t - {end} < s <= t")
    forms.same(text, inputs, partial(attention, reach=reach), {"l": layer}, K=4)


def test_no_window_on_both_sides_is_all_of_the_sequence() -> None:
    inputs = {name: randn(4, seed=seed) for seed, name in enumerate("qkv")}
    text = WINDOW.format(default="none", range="all t - w < s < t + w")
    for w in (None, 2):
        formula = partial(attention, reach=w, back=True)
        forms.same(text, inputs, formula, {"w": w}, whole=True, K=4)


def test_blocks_that_no_bound_ends_are_all_blocks() -> None:
    text = """layer Blocks(K, w = none):
    input q[K]
    blocks b of 2 every 2:
        k = sum[2](q[b])
    attend all b ending <= w:
        o = softmax(q[t].T @ k[b]) @ k[b]
    output o
"""

    def formula(q: Tensor, reach: int | None) -> Tensor:
        k = q.unflatten(1, (-1, 2)).sum(2)
        ends = torch.arange(1, q.shape[1], 2)
        left = ends <= (q.shape[1] if reach is None else reach)
        return (q @ k.mT).masked_fill(~left, -torch.inf).softmax(-1) @ k

    for w in (None, 3):
        given = partial(formula, reach=w)
        forms.same(text, {"q": randn(4)}, given, {"w": w}, whole=True, K=4)
    assert "may read tokens that have not been seen yet" in refusal(text.replace("all b", "b"))


def test_a_cache_without_a_window_holds_every_token() -> None:
    text = WINDOW.format(default="none", range="t - w < s <= t")
    open_end, narrow = archc.parse(text), archc.parse(text, w=3)
    x = {name: randn(4, seed=seed) for seed, name in enumerate("qkv")}
    kept = []
    for spec in (open_end, narrow):
        module = spec.module(dtype=torch.float64, K=4)
        _, state = module(**x, return_state=True)
        kept.append(max(part.shape[1] for part in state if isinstance(part, Tensor)))
    assert kept == [6, 2]


def test_a_model_gives_layers_with_and_without_a_window() -> None:
    text = WINDOW.format(default="8", range="t - w < s <= t") + (
        "model Stack(K, L = 2):\n    input x[K]\n    repeat L as l:\n"
        "        y = Window(K, w = none)(x, x, x) if l in [1] else Window(K, w = 2)(x, x, x)\n"
        "        x = x + y\n"
        "    output x\n"
    )

    def stack(x: Tensor) -> Tensor:
        once = x + attention(x, x, x, 2)
        return once + attention(once, once, once, None)

    forms.same(text, {"x": randn(4)}, stack, K=4)


def test_none_leaves_no_end_that_is_needed() -> None:
    assert "E0308" in refusal(WINDOW.format(default="none", range="s <= t + w"))
    assert "E0503" in refusal(
        "layer L(K, w = 3):\n    input x[K]\n    param a[w]\n    output y = x * sum[w](a)\n", w=None
    )
