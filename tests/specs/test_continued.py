"""Every bundled spec: its eager form is what the oracle says, and a sequence may be cut."""

from __future__ import annotations

import random
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import archc
from archc.ir.meaning import evaluate
from archc.specfile import bundled
from tests.few import but
from tests.specs.agreement import difference
from tests.specs.cases import SMALL, inputs
from tests.specs.references.weights import randomise

LIMIT = 1e-11
CUTS = {
    "token by token": [1] * 11,
    "a prompt, then tokens": [7, 1, 1, 1, 1],
    "ragged, with nothing in between": [4, 0, 5, 1, 0, 1],
}
OTHER_STREAMS = {"c"}
"""Inputs along another sequence: given whole each time."""


def first(outputs: Tensor | tuple) -> Tensor:
    """The first output of a layer that may have several."""
    return outputs if isinstance(outputs, Tensor) else outputs[0]


@cache
def built(name: str, optional: bool = False) -> tuple[nn.Module, dict[str, Tensor]]:
    """A small layer and its inputs, those that may be left out too if asked for. No test changes
    them."""
    spec = archc.load(name, **SMALL[name])
    layer = randomise(spec.module(dtype=torch.float64), seed=0)
    values = inputs(spec.layer, SMALL[name], B=2, T=11, seed=1)
    needed = {op.name for _, op in spec.layer.inputs if optional or not op.optional}
    return layer, {key: value for key, value in values.items() if key in needed}


def continued(
    layer: nn.Module, values: dict[str, Tensor], lengths: list[int], state: Any = None
) -> Tensor:
    """The layer applied to one piece after another, its state handed on."""
    outputs, start = [], 0
    for length in lengths:
        piece = {
            name: value if name in OTHER_STREAMS else value[:, start : start + length]
            for name, value in values.items()
        }
        *results, state = layer(**piece, state=state, return_state=True)
        outputs.append(results[0])
        start += length
    return torch.cat(outputs, 1)


def test_every_spec_has_small_sizes() -> None:
    assert set(SMALL) | {"hyper_connected"} == set(bundled())


@pytest.mark.parametrize("name", SMALL)
def test_eager_is_the_meaning(name: str) -> None:
    layer, values = built(name, optional=True)
    weights = {key: value.detach() for key, value in layer.named_parameters()}
    meaning = evaluate(archc.load(name, **SMALL[name]).layer, values, weights, {})
    outputs = layer(**values)
    outputs = (outputs,) if isinstance(outputs, Tensor) else outputs
    for ours, expected in zip(outputs, meaning.outputs.values(), strict=True):
        assert difference(ours, expected) < LIMIT


@pytest.mark.parametrize("cut", but(CUTS, ["token by token"]))
@pytest.mark.parametrize("name", [name for name in SMALL if name != "linear_attention_full"])
def test_a_sequence_may_be_cut(name: str, cut: str) -> None:
    layer, values = built(name)
    whole = first(layer(**values))
    assert difference(continued(layer, values, CUTS[cut]), whole) < LIMIT


def pieces(tokens: int, seed: int) -> list[int]:
    """Lengths that come to so many tokens: none, one, and any others, in any order."""
    chance, lengths = random.Random(seed), [0, 1, 1, 0]
    while (left := tokens - sum(lengths)) > 0:
        lengths.append(min(left, chance.choice([0, 1, 2, 3, 5, 17, 64, 65])))
    chance.shuffle(lengths)
    return lengths


QUICK, LONG = ("gpt", "lfm2"), 150
"""Models that are tried in every run, and tokens that are more than two chunks of 64."""


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in QUICK else [pytest.mark.slow])
        for name in SMALL
        if name != "linear_attention_full"
    ],
)
def test_a_cache_is_no_cache_in_pieces_of_any_length(name: str) -> None:
    """In memory that grows, in memory that is reserved, and as `torch.cat` has it."""
    tokens = {"gpt": 16}.get(name, 24 if name in QUICK else LONG)
    spec = archc.load(name, **SMALL[name])
    layer = randomise(spec.module(dtype=torch.float64), seed=0).eval()
    values = inputs(spec.layer, SMALL[name], B=2, T=tokens, seed=2)
    values = {op.name: values[op.name] for _, op in spec.layer.inputs if not op.optional}
    with torch.no_grad():
        whole = first(layer(**values))
    for seed, kept in enumerate(["grown", "reserved", "with gradients"]):
        state = layer.initial_state(2).reserve(tokens) if kept == "reserved" else None
        lengths = pieces(tokens, seed)
        with torch.set_grad_enabled(kept == "with gradients"):
            parts = continued(layer, values, lengths, state)
        assert difference(parts, whole) < 1e-9, (kept, lengths)


def test_what_reads_later_tokens_cannot_be_continued() -> None:
    layer, values = built("linear_attention_full")
    with pytest.raises(ValueError, match="tokens that come later"):
        layer(**values, return_state=True)


@pytest.mark.parametrize("name", SMALL)
def test_no_tokens_give_no_outputs(name: str) -> None:
    """And a gradient of 0 for every parameter that a whole sequence has one for."""
    layer, values = built(name)
    empty = {key: value if key in OTHER_STREAMS else value[:, :0] for key, value in values.items()}
    whole, none, trained = first(layer(**values)), first(layer(**empty)), [*layer.parameters()]
    assert none.shape == (whole.shape[0], 0, *whole.shape[2:])
    slopes = torch.autograd.grad(none.sum(), trained, allow_unused=True)
    wanted = torch.autograd.grad(whole.sum(), trained, allow_unused=True)
    for parameter, slope, there in zip(trained, slopes, wanted, strict=True):
        assert there is None or torch.equal(slope, torch.zeros_like(parameter))


@pytest.mark.parametrize("name", [name for name in SMALL if name != "linear_attention_full"])
def test_a_token_sees_no_later_one(name: str) -> None:
    layer, values = built(name)
    changed = {key: value.clone() for key, value in values.items()}
    for key in changed.keys() - OTHER_STREAMS:
        changed[key][:, -1] = changed[key][:, -1].flip(0)
    before, after = first(layer(**values)), first(layer(**changed))
    # tokens are multiplied together where a token goes to the same expert: on some processors their
    # last bits depend on how many there are
    assert difference(after[:, :-1], before[:, :-1]) < 1e-13
    assert difference(after[:, -1], before[:, -1]) > 1e-3
