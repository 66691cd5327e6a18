"""Scores that are sums over a dim of each pair, multiplied out into products of vectors."""

from __future__ import annotations

import pytest
import torch

from archc.api import parse
from archc.attention.multiplied_out import multiplied_out
from archc.attention.weighted_sum import WeightedSum
from archc.compile import folded, lowered, text_of
from archc.ir import layer as ir
from archc.ir.meaning import evaluate_graph
from archc.lowering.attention_forward import forward
from archc.show.attends import attends_of
from archc.verify.fold_trial import distance, drawn
from tests.attention.cases import launch, packed, spec
from tests.attention.test_heads import Few
from tests.backends.triton.breaches import breaches

DISTANCE = "sum[K]((q[t] - k[s]) ** 2)"
SCORES = {
    "distance": spec(f"-{DISTANCE}", groups=True),
    "of a product": spec("-(q[t] - k[s]).T @ (q[t] - k[s]) / 2"),
    "mean": spec("-mean[K]((q[t] - k[s]) ** 2)"),
    "of a sum": spec("-sum[K]((q[t] / 2 + 3 * k[s]) ** 2) / 9"),
    "Cauchy": spec(f"1 / (1 + {DISTANCE})", read="({}) @ v[s]"),
    "Laplace": spec(f"-sqrt({DISTANCE} + 0.01)"),
    "beside others": spec(f"{DISTANCE} * a[t] - b[s] * q[t].T @ k[s]", inputs="a[H], b[H]"),
    "scaled by a token": spec("-sum[K]((q[t] - a[s] * k[s]) ** 2) * 0.1", inputs="a[H]"),
    "cosine": spec("q[t].T @ k[s] / sqrt((1 + q[t].T @ q[t]) * (1 + k[s].T @ k[s]))"),
}
SIZES = {"H": 4, "G": 2, "K": 20, "V": 24}


def attend_of(text: str) -> ir.Attend:
    """The attend of a spec as it is written."""
    (found,) = (n.op for n in lowered(parse(text).layer).graph if isinstance(n.op, ir.Attend))
    return found


@pytest.mark.parametrize("name", SCORES)
def test_values_and_gradients(name: str):
    case = launch(SCORES[name], 40, **SIZES)
    assert any(dot.square for dot in case.fold.dots)
    case.check()


@pytest.mark.parametrize("name", ["distance", "Cauchy", "Laplace", "of a sum", "of a product"])
def test_it_is_what_was_written(name: str):
    """Against the body as it is written, which has a number for each channel of a pair."""
    plain = attend_of(SCORES[name])
    known = {"T#": 17, "T_seen#": 17, "batch": 2, **SIZES}
    inputs = drawn(plain, known)
    made = [evaluate_graph(a.body, inputs, known)["o"] for a in (plain, multiplied_out(plain))]
    assert distance(made[1].detach(), made[0].detach()) < 1e-13
    d = torch.randn_like(made[0])
    slopes = [torch.autograd.grad(o, [*inputs.values()], d) for o in made]
    assert all(distance(x, y) < 1e-11 for x, y in zip(*slopes, strict=True))


def test_packed_sequences_and_few_readers():
    packed(SCORES["distance"], (0, 0, 1, 4, 37, 37, 55), **SIZES).check()
    case = launch(SCORES["distance"], 40, B=1, **SIZES)
    (wanted,) = case.values(case.fold.node)
    assert distance(Few(case, 3, 3).run()["o"], wanted.detach()[:, -3:]) < 1e-12


def test_a_small_distance_of_long_vectors_keeps_digits_in_bfloat16():
    """Squares are added in float32: rounded to bfloat16 they would be off by 1 here."""
    case = launch(SCORES["distance"], 33, dtype=torch.bfloat16, **SIZES)
    with torch.no_grad():
        case.inputs["q"].add_(6).copy_(case.inputs["q"].bfloat16())
        case.inputs["k"].copy_(case.inputs["q"][:, :, :2])
    (wanted,) = case.values(case.fold.node)
    assert distance(case.forward()["o"], wanted.detach()) < 1e-2


def test_a_distance_to_itself_is_not_below_zero():
    """A square root of what rounding leaves has a number."""
    text = spec(f"-sqrt({DISTANCE})")
    case = launch(text, 33, dtype=torch.float32, **SIZES)
    with torch.no_grad():
        case.inputs["k"].copy_(case.inputs["q"])
    assert case.forward()["o"].isfinite().all()


@pytest.mark.parametrize(
    "score",
    [
        "sum[K](abs(q[t] - k[s]))",  # no polynomial
        "sum[K](w * (q[t] - k[s]) ** 2)",  # its squares have the digits of the data alone
        "sum[K](q[t] * k[s] * (q[t] + k[s]))",  # nothing of one token
        "sum[K]((q[t] - k[s]) ** 5)",
    ],
)
def test_what_is_left_as_it_is(score: str):
    text = spec(score, params="w[K]" if "w *" in score else "")
    attend = attend_of(text)
    assert multiplied_out(attend) is attend
    (told,) = attends_of(parse(text).layer)
    assert told.how.startswith("pairs of some readers at a time")


def test_the_plan_and_the_kernel_say_it():
    (told,) = attends_of(parse(SCORES["distance"]).layer)
    assert dict(told.more)["score"] == "neg(relu(square_q + square_k - 2 * product))"
    text = text_of(parse(SCORES["distance"]).layer, "triton")
    assert not breaches(text)  # what is walked is loaded once more for its square
    (fold,) = folded(multiplied_out(attend_of(SCORES["distance"])))
    assert isinstance(fold, WeightedSum)
    assert "square_q = sum[K](q * q)" in forward(fold).doc
