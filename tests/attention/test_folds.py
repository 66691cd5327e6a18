"""Sums over the tokens read as tile programs, against the reference semantics and autograd."""

from __future__ import annotations

from dataclasses import replace

import pytest
import sympy
import torch
from archc.backends.triton.printer import to_triton

from archc.attention.bounds import up_to_the_reader
from archc.attention.weighted_sum import Bound
from archc.lowering.attention_forward import forward
from archc.lowering.attention_gradient import by_readers, by_tokens
from archc.verify.fold_trial import distance
from tests.attention.cases import PLAIN, launch, packed, refusals, spec

SCORES = {
    "plain": (spec(), {}),
    "both ways": (spec(range="all s"), {}),
    "capped": (spec(f"softcap({PLAIN}, cap)", groups=True, sizes="cap"), {"G": 2, "cap": 3.0}),
    "sloped": (spec(f"{PLAIN} - slope * (t - s)", params="slope[H]"), {}),
    "window, sink": (
        spec(f"{PLAIN}, sink", "t - w < s <= t", params="sink[H]", sizes="w"), {"w": 20},
    ),
    "forgetting": (spec(f"{PLAIN} + sum r in (s, t]: g[r]", inputs="g[H]"), {}),
    "unnormalised": (spec(read="({}) @ v[s]"), {}),
    "before the token": (spec(range="s < t"), {}),
    "blocks that have ended": (
        spec(f"where(s * n + n - 2 < t, {PLAIN}, -inf)", "all s", sizes="n"), {"n": 3},
    ),
    "some of the past": (spec(range="t - w < s <= t - n", sizes="w, n"), {"w": 30, "n": 7}),
    # four of our own
    "gated by both": (spec(f"sigmoid(a[t] + b[s]) * {PLAIN}", inputs="a[H], b[H]"), {}),
    "log of the distance": (spec(f"{PLAIN} - rate * log(1 + t - s)", params="rate[H]"), {}),
    "a wave of the distance": (spec(f"{PLAIN} * (1 + cos(w * (t - s)) / 2)", params="w[H]"), {}),
    "squared, unnormalised": (
        spec(f"relu({PLAIN}) ** 2 / (1 + t)", read="({}) @ v[s]"), {},
    ),
    "a table by distance": (
        spec(f"{PLAIN} + bias[min(t - s, W - 1)]", params="bias[W, H]", sizes="W"), {"W": 9},
    ),
    "buckets of both directions": (
        spec(f"{PLAIN} + b[where(t < s, 5, 0) + min(abs(t - s), 3) + where(abs(t - s) >= 6, 1, 0)]",
             "all s", params="b[10, H]"), {},
    ),
    "softmax with signs": (
        spec(PLAIN, read="(softmax(abs({0})) * tanh({0}) * g[t]) @ v[s]", inputs="g[H]"), {},
    ),
    "softmax within a span": (spec(read="(softmax({}) * where(t - s < 5, 1, 0)) @ v[s]"), {}),
    "the mean age": (spec(read="sum[s](softmax({}) * (t - s))"), {}),
    "the mean of numbers": (spec(read="sum[s](softmax({}) * c[s])", inputs="c[H]"), {}),
    "softmax over another product, of blocks": (
        spec(f"{PLAIN}, sink", "t - w < s < t", params="sink[H], rate[H]", sizes="w, R",
             inputs="p[H, R], m[H, R]",
             read="(softmax({}) * sigmoid(p[t].T @ m[s]) / (1 + rate * log(t - s))) @ v[s]"),
        {"w": 20, "R": 5},
    ),
    "two products": (spec(f"{PLAIN} + p[t].T @ m[s]", inputs="p[H, R], m[R]", sizes="R"), {"R": 5}),
}  # fmt: skip
SIZES = {"H": 4, "K": 20, "V": 24}


PACKED = (
    "capped",
    "sloped",
    "window, sink",
    "forgetting",
    "a table by distance",
    "both ways",
    "softmax with signs",
)


@pytest.mark.default(
    "before the token",
    "gated by both",
    "blocks that have ended",
    "two products",
    "the mean of numbers",
)
@pytest.mark.parametrize(
    ("name", "T"),
    [*((name, 50) for name in SCORES if name not in PACKED), ("capped", 1), ("window, sink", 15)],
)
def test_values_and_gradients(name: str, T: int):
    text, sizes = SCORES[name]
    launch(text, T, **SIZES, **sizes).check()


BORDERS = (0, 0, 1, 4, 37, 37, 55)


@pytest.mark.default("window, sink", "both ways")
@pytest.mark.parametrize("name", PACKED)
def test_packed_sequences_are_each_as_if_alone(name: str):
    """Of no tokens, of one, of few, of several blocks: by one launch of each program."""
    text, sizes = SCORES[name]
    packed(text, BORDERS, **SIZES, **sizes).check()


def test_a_sink_that_takes_nothing_of_readers_that_read_nothing():
    """Neither a value nor a gradient is NaN; the reference has both."""
    text = spec(f"{PLAIN}, sink", "s <= t - w", params="sink[H]", sizes="w")
    case = launch(text, 37, **SIZES, w=30)
    with torch.no_grad():
        case.inputs["sink"].fill_(-torch.inf)
    assert all(
        x.isfinite().all()
        for x in case.gradients(torch.ones(case.values(case.fold.node)[0].shape).double()).values()
    )
    assert case.forward()["o"].isfinite().all()


@pytest.mark.slow
def test_what_is_in_all_scores_of_a_reader_is_left_out_of_whole_blocks():
    """The softmax does not see it: the largest score gets it back at the edges of the mask."""
    score = f"{PLAIN} + (sum r in (s, t]: g[r]) - (sum r in (s, t]: f[r]), sink"
    text = spec(score, "t - w < s <= t", params="sink[H]", inputs="g[H], f[H]", sizes="w")
    case = launch(text, 90, **SIZES, w=70)
    case.check()
    printed = to_triton(forward(case.fold))
    assert [printed.count(f" {sign} common") for sign in "-+"] == [1, 1]
    assert "score = score_sum" not in printed


@pytest.mark.parametrize("copied", [0, 1])
def test_a_nan_stays_in_its_packed_sequence(copied: int):
    text, _ = SCORES["forgetting"]
    case = packed(text, (0, 5, 20, 37), **SIZES)
    case = replace(case, fold=replace(case.fold, copied=True), copied=copied)
    given = case.sources()
    for x in given.values():
        x[:, 5:20] = torch.nan
    o = case.interpreted(forward(case.fold), given)["o"]
    assert o[:, 5:20].isnan().all() and o[:, :5].isfinite().all() and o[:, 20:].isfinite().all()


@pytest.mark.parametrize("name", ["two products", "some of the past"])
def test_the_copy_engine_reads_whole_blocks(name: str):
    text, sizes = SCORES[name]
    case = launch(text, 50, **SIZES, **sizes)
    replace(case, fold=replace(case.fold, copied=True), copied=1).check()


def test_the_copy_engine_reads_whole_blocks_of_packed_sequences():
    text, sizes = SCORES["window, sink"]
    case = packed(text, BORDERS, **SIZES, **sizes)
    replace(case, fold=replace(case.fold, copied=True), copied=1).check()


def test_programs_for_packed_sequences_do_batches_too():
    text, sizes = SCORES["a table by distance"]
    case = launch(text, 50, **SIZES, **sizes)
    case.fold = replace(case.fold, packed=True)
    case.check()


def test_another_sequence():
    case = launch(spec(range="all s"), 21, 37, **SIZES)
    (wanted,) = case.values(case.fold.node)
    assert distance(case.forward()["o"], wanted.detach()) < 1e-12


def test_nothing_to_read_is_zero():
    case = launch(spec(range="s < t"), 18, **SIZES)
    found = case.forward()
    assert (found["o"][:, 0] == 0).all() and (found["lse"][..., 0] == 0).all()
    for x in case.gradients(torch.ones_like(found["o"])).values():
        assert torch.isfinite(x).all()


@pytest.mark.parametrize("w", [0, -3])
def test_a_window_of_no_tokens_is_zero(w: int):
    text, _ = SCORES["window, sink"]
    case = launch(text, 18, **SIZES, w=w)
    found = case.forward()
    assert (found["o"] == 0).all()
    for x in case.gradients(torch.ones_like(found["o"])).values():
        assert (torch.as_tensor(x) == 0).all()


def test_a_gate_that_forgets_all():
    """Sums of gates are differences of running sums, which must not swallow small ones."""
    text, _ = SCORES["forgetting"]
    case = launch(text, 40, dtype=torch.float32, **SIZES)
    with torch.no_grad():
        case.inputs["g"].copy_(-case.inputs["g"].abs())
        case.inputs["g"][:, ::7] = -1e4
    (wanted,) = case.values(case.fold.node)
    assert distance(case.forward()["o"], wanted.detach()) < 2e-6


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_narrow_dtypes(dtype: torch.dtype):
    text, sizes = SCORES["capped"]
    case = launch(text, 33, dtype=dtype, **SIZES, **sizes)
    (wanted,) = case.values(case.fold.node)
    limit = 2e-6 if dtype == torch.float32 else 1e-2
    assert distance(case.forward()["o"], wanted.detach()) < limit


def test_blocks_out_of_the_window_are_not_read():
    """A block before every reader's window holds NaN here, which would reach the result."""
    text, sizes = SCORES["window, sink"]
    case = launch(text, 64, **SIZES, **sizes)
    given = case.sources()
    for name in ("k", "v"):
        given[name][:, :16] = torch.nan
    made = case.interpreted(forward(case.fold), given)
    assert torch.isfinite(made["o"][:, 48:]).all() and made["o"][:, :16].isnan().all()


def test_blocks_that_end_later_are_not_read():
    """Places that stand for 3 positions each: what ends behind the last of a program's readers
    holds NaN here, and so does what a reader is that all that a program reads ends behind."""
    text, sizes = SCORES["blocks that have ended"]
    case = launch(text, 64, **SIZES, **sizes)
    given = case.sources()
    for name in ("k", "v"):
        given[name][:, 32:] = torch.nan
    made = case.interpreted(forward(case.fold), given)
    assert torch.isfinite(made["o"]).all()
    given = case.sources() | {name: made[name] for name in ("o", "lse")}
    given["d_o"] = torch.ones_like(made["o"])
    given |= case.interpreted(by_readers(case.fold), given)
    given["q"][:, :32] = torch.nan
    found = case.interpreted(by_tokens(case.fold), given)
    assert torch.isfinite(found["d_k"][:, 16:]).all() and found["d_k"][:, :1].isnan().all()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (spec(read="softmax(dropout({}, 0.1)) @ v[s]"), "a part of its weights is dropped"),
        (spec("sum[K](tanh(q[t] + k[s]))"), "a number for each channel"),
        (
            spec(
                f"{PLAIN} + sum[M](relu((t - s) * a + b) * c)", params="a, b[M]; c[M, H]", sizes="M"
            ),
            "each pair has a number for each entry of `M`",
        ),
    ],
)
def test_refused(text: str, reason: str):
    assert any(reason in each for each in refusals(text)), refusals(text)


def test_bounds_say_whether_later_tokens_are_read():
    assert up_to_the_reader((Bound(True, 1, sympy.Integer(-1)),))
    assert not up_to_the_reader((Bound(True, 0, sympy.Integer(-1)),))
    assert not up_to_the_reader((Bound(True, 1, sympy.Integer(1)),))
