"""The composition law as functions of tensors: summaries, their merge, and a sequence in parts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import archc
from archc.algebra.cut import op
from archc.compile import entered
from archc.numerics.stated import stated
from tests.few import but

SIZES = {"batch": 2, "t": 37, "H": 2, "K": 4, "V": 3, "D": 5}
"""The length of an axis by its name without primes; others are 2."""

MOMENTUM = str(Path(__file__).parent / "newcomers" / "titans.arch")
"""Two matrices, of which one scales the other and is corrected by what that gives."""

SPECS = [
    "linear_attention_simple", "gla", "kda", "gated_delta_product", "rwkv7", "mamba", "mlstm",
    MOMENTUM,
]  # fmt: skip

CASCADE = """
layer Cascade(H, K = 4, V = 3):
    input q[H, K], k[H, K], v[H, V], f[H]
    recurrence S[K, V], R[K, V] over H:
        S[t] = sigmoid(f) * S[t-1] + k @ v.T
        r    = tanh(S[t].T @ q)
        R[t] = exp(-softplus(f)) * R[t-1] + k @ r.T
        o    = R[t].T @ q
    output o
"""


def random_inputs(spec: archc.Spec, seed: int = 0) -> list[Tensor]:
    """Random arguments of the memory in float64, where the layer says that they lie."""
    ready = entered(spec.layer)
    memory = op(ready, stated(ready))
    bounds = {bound.name: bound for bound in memory.chunk.bounds}
    generator, found = torch.Generator().manual_seed(seed), []
    for _, given in memory.inputs:
        shape = [SIZES.get(axis.base, 2) for axis in given.type.axes]
        x = torch.randn(shape, generator=generator, dtype=torch.float64)
        bound = bounds.get(given.name)
        if bound is not None:
            x = -x.abs() if bound.high <= 0 else torch.sigmoid(x)
        found.append(x)
    return found


def near(one: Any, other: Any) -> bool:
    return all(torch.allclose(a, b, 1e-10, 1e-10) for a, b in zip(one, other, strict=True))


@pytest.mark.default("gla", "kda", "mamba")
@pytest.mark.parametrize("name", but(SPECS, ["gated_delta_product"]))
def test_a_sequence_in_parts_is_the_whole(name: str) -> None:
    """With chunks of 2 tokens a part is summarised in four segments, and what is left."""
    spec = archc.load(name)
    inputs = random_inputs(spec)
    *whole, state = spec.op(*inputs)
    for parts, chunk in ((1, 8), (4, 8), (1, 2)):
        *found, end = archc.law.split(spec.op, spec.law, inputs, parts, chunk=chunk)
        assert near([*whole, *state], [*found, *end])


def test_summaries_are_merged_and_applied() -> None:
    spec = archc.load("kda")
    inputs, law = random_inputs(spec), spec.law
    assert law.arguments == ("q", "k", "v", "log_alpha", "beta")
    assert law.Summary._fields == ("P_S", "Q_S")
    first, second = ([x[:, part] for x in inputs] for part in (slice(0, 20), slice(20, 37)))
    both = law.merge(law.summary(*first, chunk=8), law.summary(*second, chunk=8))
    assert near(both, law.summary(*inputs))
    _, past = spec.op(*random_inputs(spec, 1))
    assert near(law.apply(both, past), spec.op(*inputs, state=past)[-1])


def test_nothing_is_the_identity() -> None:
    spec = archc.load("mlstm")
    inputs, law = random_inputs(spec), spec.law
    nothing, part = law.summary(*(x[:, :0] for x in inputs)), law.summary(*inputs)
    assert near(law.merge(nothing, part), part)
    assert near(law.merge(part, nothing), part)


def test_states_that_read_others_take_a_second_round() -> None:
    spec = archc.parse(CASCADE)
    inputs = random_inputs(spec)
    assert spec.law.rounds == 2
    with pytest.raises(ValueError, match="`R` read other states at every token"):
        spec.law.summary(*inputs)
    *whole, state = spec.op(*inputs)
    *found, end = archc.law.split(spec.op, spec.law, inputs, 4, chunk=8)
    assert near([*whole, *state], [*found, *end])


def test_summaries_of_short_numbers_are_wide() -> None:
    spec = archc.load("kda")
    inputs = [x.bfloat16() for x in random_inputs(spec)]
    part, exact = spec.law.summary(*inputs), spec.law.summary(*(x.double() for x in inputs))
    assert {x.dtype for x in part} == {torch.float32}
    assert all(torch.allclose(a.double(), b, 1e-4, 1e-5) for a, b in zip(part, exact, strict=True))


def test_gradients_pass_the_summaries() -> None:
    spec = archc.load("kda")
    inputs = [x.requires_grad_() for x in random_inputs(spec)]
    *whole, _ = spec.op(*inputs)
    expected = torch.autograd.grad(whole[0].square().sum(), inputs)
    *found, _ = archc.law.split(spec.op, spec.law, inputs, 3, chunk=8)
    assert near(expected, torch.autograd.grad(found[0].square().sum(), inputs))


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("slstm", "`logsigmoid` of a state"),
        ("path", "one recurrence"),
        ("mom", "one recurrence"),
        ("swiglu", "no recurrence or attention"),
    ],
)
def test_what_has_no_law_says_why(name: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        _ = archc.load(name).law
