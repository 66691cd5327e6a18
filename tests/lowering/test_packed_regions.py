"""Token regions of packed sequences: each as if by itself, values and gradients, in float64."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from archc.backends.eager.emit import called_first
from torch import Tensor

import archc
from archc.compile import lowered
from archc.ir import layer as ir
from archc.ir.graph import Node
from archc.ir.plan import examples
from archc.ir.token_region import TokenRegion
from archc.lowering.token import Lowered, lower_values
from archc.regions.cut import regions
from tests.lowering.packed import PackedTrial, batch_trial, packed_trial
from tests.lowering.regions import Named, Trial, regions_of, resolved

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


@pytest.mark.default("delta")
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
        errors = batch_trial(each.region, each.known, 5).errors()
        assert max(errors.values()) < CLOSE, (each.region.name, errors)


OWN = Path(__file__).parents[1] / "backends/triton/regions"


@pytest.mark.default("behind")
@pytest.mark.parametrize("name", ["chained", "behind"])
def test_looks_at_what_is_made(name: str) -> None:
    """What is looked back on leaves the region as the last tokens of each sequence."""
    layer = lowered(archc.load(OWN / f"{name}.arch").layer)
    looking = regions_of(layer)
    assert looking
    for region in looking:
        each = packed_trial(region, resolved(layer, {"K": 2}), LENGTHS)
        assert each.region.tails
        plain = replace(each.region, packed=False)  # as models have it whose states are in slots
        alone = [batch_trial(r, each.known, n) for r in (each.region, plain) for n in (1, 6)]
        for found in (each, *alone):
            errors = found.errors()
            assert max(errors.values()) < CLOSE, errors


@pytest.mark.default("delta")
@pytest.mark.parametrize("spec", ["delta", "lfm2"])
def test_the_past_of_the_next_call(spec: str) -> None:
    """The last tokens of each sequence, with those of its past where these are fewer."""
    found = trials(spec, LENGTHS)
    assert found
    for packed in found:
        plain = replace(packed.region, packed=False)
        alone = [batch_trial(r, packed.known, n) for r in (packed.region, plain) for n in (1, 2, 5)]
        for each in (packed, *alone):
            ((name, past),) = each.region.nexts.items()
            torch.manual_seed(1)
            given, outputs, _ = each.expected()
            made = lower_values(each.region)
            assert isinstance(made, Lowered)
            shapes = {n: x.shape for n, x in outputs.items()}
            kept = each.ran(made, given, {**shapes, name: given[past].shape})[name]
            torch.testing.assert_close(kept, followed(each, given, past))


def followed(each: PackedTrial, given: Named, past: str) -> Tensor:
    """The last tokens of what `looked_at` makes of each sequence, those before the first among
    them."""
    before = given[past]
    lengths = each.lengths * (len(before) // len(each.lengths))
    parts = looked_at(each, given).flatten(0, 1).split(lengths)
    pairs = zip(before, parts, strict=True)
    return torch.stack([torch.cat([kept, own])[len(own) :] for kept, own in pairs])


def looked_at(each: PackedTrial, given: Named) -> Tensor:
    """What a region looks back on: an input of it, or a product of two."""
    graph = each.region.graph
    (past,) = each.region.pasts
    node = graph[each.region.choice(past).operands[1]]
    read = [graph[id] for id in node.operands] or [node]
    values = [given[n.op.name] for n in read if isinstance(n.op, ir.Input)]
    assert node.operands == () or node.op == ir.Elementwise("mul")
    return torch.stack(values).prod(0)


ODD = """
layer Odd(K):
    input x[K]
    param c[K, width]; g[K]
    u = silu(shortconv(x, c))
    output y[K] = u * rsqrt(sum[K](u * u) + 1e-6) * sigmoid(g * x)
"""


class OddTrial(PackedTrial):
    """Sequences of two tokens begin with -inf, those of three are zeros alone."""

    def alone(self, length: int) -> Trial:
        return Spoilt(self.region, {**self.known, "T#": length})


class Spoilt(Trial):
    def drawn(self, node: Node, extra: int, dtype: torch.dtype = torch.float64) -> Tensor:
        x = super().drawn(node, extra, dtype)
        if node.op.name == "x" and self.known["T#"] == 2:
            x[0, extra] = float("-inf")
        return x * 0.0 if node.op.name == "x" and self.known["T#"] == 3 else x


@pytest.mark.parametrize("width", [2, 5])
def test_what_is_no_number_stays_in_its_sequence(width: int) -> None:
    """A norm over zeros, and -inf through a convolution, a norm and a gate; widths longer than the
    sequence. Gradients of what all sequences share are no numbers then, as PyTorch has them."""
    layer = lowered(archc.parse(ODD.replace("width", str(width))).layer)
    (region,) = regions_of(layer)
    lengths = (4, 2, 3, 1, 4)
    plain = packed_trial(region, resolved(layer, {"K": 3}), lengths)
    each = OddTrial(plain.region, plain.known, lengths=lengths)
    torch.manual_seed(0)
    _, outputs, wanted = each.expected()
    wrong = outputs["y"].isnan().any(-1)[0]
    assert wrong.any() and not wrong[:4].any() and not wrong[6:].any()
    assert not wanted["d.x"][:, 6:].isnan().any() and wanted["d.c"].isnan().any()
    errors = each.errors()
    assert max(errors.values()) < CLOSE, errors
