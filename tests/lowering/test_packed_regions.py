"""Token regions of packed sequences: each as if by itself, values and gradients, in float64."""

from __future__ import annotations

from pathlib import Path

import pytest
from archc.backends.eager.emit import called_first

import archc
from archc.compile import lowered
from archc.ir.plan import examples
from archc.ir.token_region import TokenRegion
from archc.regions.cut import regions
from tests.lowering.packed import PackedTrial, packed_trial
from tests.lowering.regions import regions_of, resolved

CLOSE = 1e-11
LENGTHS = (0, 1, 7, 2, 0, 0, 5)
"""Empty sequences, sequences shorter than a convolution, and blocks with several of them."""

LOOKING = ("delta", "lfm2", "rwkv7")
"""Bundled specs with a kind of region each that looks back on tokens; others have the same."""

OTHERS = (
    "gated_delta", "gated_delta_product", "kda", "mamba", "mamba2", "mamba2_lm", "mesa",
    "qwen3_next",
)  # fmt: skip


def trials(spec: str, lengths: tuple[int, ...]) -> list[PackedTrial]:
    """The regions of a bundled spec that look back, each of a kind once."""
    found = dict[object, PackedTrial]()
    for layer in called_first(lowered(archc.load(spec).layer)):
        sizes = next(iter(examples(layer, 4)), None)
        for region in regions(layer.graph):
            if isinstance(region, TokenRegion) and region.pasts and sizes is not None:
                ops = tuple((type(n.op), n.operands) for n in region.graph)
                found.setdefault(ops, packed_trial(region, sizes, lengths))
    return [*found.values()]


@pytest.mark.parametrize(
    "spec", [*LOOKING, *(pytest.param(s, marks=pytest.mark.slow) for s in OTHERS)]
)
def test_bundled_regions(spec: str) -> None:
    found = trials(spec, LENGTHS)
    assert found
    for each in found:
        errors = each.errors()
        past = next(iter(each.region.pasts))
        assert f"d.{past}" in errors
        assert max(errors.values()) < CLOSE, (each.region.name, errors)


OWN = Path(__file__).parents[1] / "backends/triton/regions"


@pytest.mark.parametrize("name", ["chained", "behind"])
def test_looks_at_what_is_made(name: str) -> None:
    """What is looked back on leaves the region as the last tokens of each sequence."""
    layer = lowered(archc.load(OWN / f"{name}.arch").layer)
    for region in regions_of(layer):
        each = packed_trial(region, resolved(layer, {"K": 2}), LENGTHS)
        assert each.region.tails
        errors = each.errors()
        assert max(errors.values()) < CLOSE, errors
