"""Folds over the tokens read, run by blocks, beside the sums over all pairs at once. Imports
torch."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import torch

from archc.attention.weighted_sum import WeightedSum
from archc.ir import layer as ir
from archc.ir.sizes import evaluate
from archc.verify.checks import GRADIENT_LIMIT, Check
from archc.verify.choice_trial import ChoiceTrial
from archc.verify.fold_trial import FoldTrial, distance, drawn


def fold_checks(
    fold: WeightedSum, attend: ir.Attend, sizes: Mapping[str, float]
) -> Iterator[Check]:
    """The programs of a fold, run by blocks, against all pairs at once; none where what enters is
    no real number, but for a choice, or another sequence, but for blocks of the layer's own tokens.
    Sizes are those of the layer."""
    choice = fold.choice.source.node if fold.choice is not None else None
    inputs = [n for n in attend.body if isinstance(n.op, ir.Input) and n.id != choice]
    known: dict[str, float] = {"T#": TOKENS, "T_seen#": TOKENS, "batch": 2, **sizes}
    own = known.keys() >= {str(size) for size in fold.read.size.free_symbols}
    if not own or len(fold.lookups) > 1 or any(node.type.dtype != "real" for node in inputs):
        return
    known["T_seen#"] = evaluate(fold.read.size, known)
    trial = FoldTrial(fold, attend, known, {})
    if fold.choice is not None:
        trial = ChoiceTrial(fold, attend, known, {})
        known[fold.choice.blocks.name] = trial.most = trial.places
    trial.inputs = drawn(attend, known)
    yield Check(f"blocks of {trial.block} tokens", lambda: _values_off(trial))
    if fold.slopes is not None:
        yield Check("gradient, by blocks", lambda: _gradients_off(trial), GRADIENT_LIMIT)


TOKENS = 40
"""How many tokens the numbers of a fold are computed with."""


def _values_off(trial: FoldTrial) -> float:
    """How far the sum by blocks is from that over all pairs."""
    wanted, found = trial.values(*trial.fold.nodes), trial.forward()
    return max(
        distance(found[name], trial.as_made(x.detach(), name))
        for name, x in zip(trial.made, wanted, strict=True)
    )


def _gradients_off(trial: FoldTrial) -> float:
    """How far the gradients of what enters are, at most."""
    wanted, generator = trial.values(*trial.fold.nodes), torch.Generator().manual_seed(1)
    d = [torch.randn(x.shape, generator=generator).double() for x in wanted]
    learned = {name: x for name, x in trial.inputs.items() if x.requires_grad}
    slopes = torch.autograd.grad(wanted, [*learned.values()], d, allow_unused=True)
    given = (trial.as_made(x, name) for name, x in zip(trial.made, d, strict=True))
    found = trial.gradients(*(x.contiguous() for x in given))
    errors = [0.0]
    for (name, x), slope in zip(learned.items(), slopes, strict=True):
        right = torch.zeros_like(x) if slope is None else slope
        error = float((found[name] - right).norm()) / max(float(right.norm()), 1e-3)
        errors.append(error if math.isfinite(error) else math.inf)
    return max(errors)
