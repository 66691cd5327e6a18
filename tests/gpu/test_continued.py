"""Every bundled spec on a GPU, by its kernels in float32, against its eager form in float64:
a whole sequence, and the same in pieces of any length, each with the state that the last one left.

    python -m pytest -m gpu -n 12 tests/gpu/test_continued.py
"""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

import archc
from tests.specs.agreement import difference
from tests.specs.cases import SMALL, inputs
from tests.specs.references.weights import randomise
from tests.specs.test_continued import continued, first

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]
PIECES = [70, 0, 1, 33, 1, 1, 3, 2, 19, 20]
"""More than a chunk, nothing, one token, fewer than a short convolution looks back on."""

SHORT = {"gpt": 16}
"""Tokens that a table of positions has room for."""

LIMIT = 2e-4
"""Of the largest value: what float32 leaves of it after several layers."""


def pieces(tokens: int) -> list[int]:
    """Lengths that come to so many tokens."""
    if tokens == sum(PIECES):
        return PIECES
    return [5, 0, 1, 3, 1, tokens - 10]


def gradients(layer: nn.Module, values: dict[str, Tensor], lengths: list[int]) -> list[Tensor]:
    """Of a fixed sum of the outputs, piece after piece, by the parameters that it depends on."""
    made = continued(layer, values, lengths)
    weights = torch.linspace(-1, 1, made.shape[-1], dtype=torch.float64).to(made)
    learned = [each for each in layer.parameters() if each.requires_grad]
    found = torch.autograd.grad((made * weights).sum(), learned, materialize_grads=True)
    return [each.double().cpu() for each in found]


@pytest.mark.parametrize("name", [each for each in SMALL if each != "linear_attention_full"])
def test_a_sequence_in_pieces(name: str) -> None:
    tokens = SHORT.get(name, sum(PIECES))
    spec = archc.load(name, **SMALL[name])
    exact = randomise(spec.module(dtype=torch.float64), seed=0).eval()
    layer = copy.deepcopy(exact).float().cuda()
    values = inputs(spec.layer, SMALL[name], B=2, T=tokens, seed=1)
    values = {op.name: values[op.name] for _, op in spec.layer.inputs if not op.optional}
    given = {k: (x.float() if x.is_floating_point() else x).cuda() for k, x in values.items()}
    wanted = first(exact(**values)).detach()
    with torch.no_grad():
        assert difference(first(layer(**given)).double().cpu(), wanted) < LIMIT
        made = continued(layer, given, pieces(tokens))
        assert difference(made.double().cpu(), wanted) < LIMIT
    slopes = gradients(exact, values, [tokens])
    size = max(float(each.abs().max()) for each in slopes)
    for one, other in zip(gradients(layer, given, pieces(tokens)), slopes, strict=True):
        assert float((one - other).abs().max()) < 20 * LIMIT * max(
            float(other.abs().max()), size / 100
        )
