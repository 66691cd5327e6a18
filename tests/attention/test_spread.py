"""What is weighted and summed depends on the reader too, or is a factor of each pair: folds all the
same, and waves of distances in scores."""

from __future__ import annotations

import pytest
import torch

from archc.api import parse
from archc.attention.spread import spread
from archc.attention.totals import as_folds
from archc.attention.weighted_sum import WeightedSum
from archc.compile import folded, lowered
from archc.ir import layer as ir
from archc.ir.meaning import evaluate_graph
from archc.show.attends import attends_of
from archc.verify.fold_trial import distance, drawn
from tests.attention.cases import PLAIN, spec
from tests.attention.test_multiplied_out import attend_of

SIZES = {"H": 4, "K": 20, "V": 24}
SOFT = f"softmax({PLAIN})"
THETA = "100 ** (-index[K] / K)"
SUMS = {
    "relative values": spec(
        PLAIN, inputs="c[H, V], e[H, V]",
        read="softmax({0}) @ (v[s] - v[t] / 2) + softmax({0}) @ (c[t] * e[s] * v[s] + 3)",
    ),
    "weights as they stand": spec(
        "sigmoid(q[t].T @ k[s])", range="t - 5 < s < t", inputs="a[H], b[H]",
        read="({}) @ (a[s] * v[t] * b[t] + v[s])",
    ),
    "a factor that says for itself": spec(
        "min(max(b[s] - (t - s) / 4, 0), 1)", inputs="b[]",
        read=f"(({{0}}) * {SOFT}) @ v[s] / (sum[s](({{0}}) * {SOFT}) + 0.1)",
    ),
    "a factor of all heads": spec(
        "where(t - s < 9, a[s], 0)", inputs="a[]",
        read=f"sum[s](({{0}}) * {SOFT}) * v[t]",
    ),
    "polar": spec(f"mean[K](q[t] * k[s] * cos((s - t) * {THETA} + d + 0.5))", params="d[H, K]"),
    "turned": spec(
        f"sum[K](q[t] * k[s] * cos((t - s) * {THETA}) - k[s] * q[t] * sin(a[t] - a[s]))",
        inputs="a[H, K]",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SUMS)
def test_they_are_what_was_written_and_folds(name: str) -> None:
    attend = attend_of(SUMS[name])
    known = {"T#": 17, "T_seen#": 17, "batch": 2, **SIZES}
    inputs, made = drawn(attend, known), as_folds(attend)
    assert all(isinstance(fold, WeightedSum) for fold in folded(made))
    assert not all(isinstance(fold, WeightedSum) for fold in folded(attend))
    ends = [evaluate_graph(each.body, inputs, known)["o"] for each in (attend, made)]
    assert distance(ends[1].detach(), ends[0].detach()) < 1e-13
    d = torch.randn_like(ends[0])
    slopes = [torch.autograd.grad(o, [*inputs.values()], d, materialize_grads=True) for o in ends]
    for plain, other in zip(*slopes, strict=True):
        assert distance(other, plain) < 1e-11


CHOSEN = """layer Chosen(H, K, V):
    input q[H, K], k[H, K], v[H, V]
    index s <= t:
        z = sum[H, K](q[t] * k[s])
    chosen = top(3, z)
    attend s <= t in chosen over H:
        o = softmax(q[t].T @ k[s]) @ (v[s] - v[t])
    output o
"""


@pytest.mark.parametrize("text", [CHOSEN, spec(SOFT, read="dropout({}, 0.5) @ (v[s] - v[t])")])
def test_weights_that_are_dropped_or_of_chosen_tokens_stay_together(text: str) -> None:
    attends = [n.op for n in lowered(parse(text).layer).graph if isinstance(n.op, ir.Attend)]
    assert all(spread(each) is each for each in attends)


@pytest.mark.parametrize("angle", ["w * (t - s)", "w * (a[t] - a[s])", "w * a[t] * b[s]"])
def test_a_learned_frequency_is_multiplied_by_the_distance(angle: str) -> None:
    """Apart, the gradients of the two angles are large and opposite: in 16 bits nothing is left."""
    text = spec(f"sum[K](q[t] * k[s] * cos({angle}))", params="w[K]", inputs="a[H], b[H]")
    (told,) = attends_of(parse(text).layer)
    assert told.how.startswith("pairs of some readers at a time")


def test_sums_of_chosen_tokens_are_all_by_kernels_or_none() -> None:
    """One that stays in PyTorch would take the list of places for a mask."""
    text = CHOSEN.replace("(v[s] - v[t])", "v[s] * logsumexp(q[t].T @ k[s])")
    told = [each.how for each in attends_of(parse(text).layer)]
    assert len(told) >= 2 and all("fold" not in how for how in told[-2:])
