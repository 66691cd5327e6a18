"""Random layers of the language: every form of each is what its spec says."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from torch import Tensor

import archc
from archc.algebra.simplify import simplify
from archc.ir.meaning import evaluate
from archc.ir.verify import verify
from archc.source import Source
from archc.syntax.format import format_source
from tests.layers import SIZES, Example, layers
from tests.specs.agreement import difference
from tests.specs.references.weights import randomise
from tests.syntax.test_format import meaning_of

torch.set_num_threads(1)

T = 7
LIMIT = 1e-9
CUTS = ([1] * T, [4, 1, 0, 2])
SLOW_TO_DRAW = settings(
    deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)


def continued(module: torch.nn.Module, x: Tensor, lengths: list[int]) -> Tensor:
    """The module applied to one piece after another."""
    state, parts = None, []
    for piece in x.split(lengths, 1):
        y, state = module(piece, state=state, return_state=True)
        parts.append(y)
    return torch.cat(parts, 1)


def check(example: Example) -> None:
    """All forms of one layer, against the meaning of its spec."""
    spec = archc.parse(example.text)
    verify(spec.layer)
    module = randomise(spec.module(**SIZES, dtype=torch.float64), seed=0)
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(2, T, SIZES["d"], generator=generator, dtype=torch.float64)

    def meaning(layer: object) -> Tensor:
        found = evaluate(layer, {"x": x}, module.state_dict(), SIZES)
        return next(iter(found.outputs.values()))

    expected = meaning(spec.layer)
    assert expected.isfinite().all()
    assert difference(meaning(simplify(spec.layer)), expected) < LIMIT
    with torch.no_grad():
        assert difference(module(x), expected) < LIMIT
        for lengths in CUTS if example.causal else ():
            assert difference(continued(module, x, lengths), expected) < LIMIT

    written = format_source(Source("test.arch", example.text))
    assert format_source(Source("test.arch", written)) == written
    for text in (written, format_source(Source("test.arch", written), unicode=True)):
        assert meaning_of(text) == meaning_of(example.text)

    values = evaluate(spec.layer, {"x": x}, module.state_dict(), SIZES).values
    mixed(archc.mixer_matrix(module, x), values)


def mixed(found: archc.MixerMatrix, values: dict[str, Tensor]) -> None:
    """Where a layer's matrix claims to be exact, applied to the values it is the result."""
    if not found.exact:
        return
    assert not found.summed
    value, result = values[found.value], values[found.output]
    value = value.repeat_interleave(result.shape[2] // value.shape[2], 2)
    weights = found.data.movedim((-2, -1), (1, 2))  # [B, T, S, heads]
    weights = weights.reshape(*weights.shape, *[1] * (value.dim() + 1 - weights.dim()))
    assert difference((weights * value[:, None]).sum(2), result) < LIMIT


@settings(SLOW_TO_DRAW, max_examples=5, derandomize=True)
@given(layers())
def test_every_form_is_the_meaning(example: Example) -> None:
    check(example)


@pytest.mark.slow
@settings(SLOW_TO_DRAW, max_examples=500)
@given(layers())
def test_every_form_is_the_meaning_of_many(example: Example) -> None:
    check(example)
