"""Folds over the tokens read, run by blocks, beside the sums over all pairs at once. Imports
torch."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from archc.attention.between import Between
from archc.attention.weighted_sum import WeightedSum
from archc.ir import layer as ir
from archc.ir.sizes import evaluate
from archc.verify.checks import GRADIENT_LIMIT, Check
from archc.verify.choice_trial import ChoiceTrial
from archc.verify.fold_trial import FoldTrial, distance, drawn
from archc.verify.tree_trial import TreeTrial


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


def tree_checks(
    tree: Between, attend: ir.Attend, sizes: Mapping[str, float]
) -> Iterator[Check]:  # fmt: skip
    """The same of the programs of a tree of spans; what is between is drawn so that products of
    many neither vanish nor grow, and gates are at most 1."""
    inputs = [n for n in attend.body if isinstance(n.op, ir.Input)]
    T = TOKENS_OF_TREE
    known: dict[str, float] = {"T#": T, "T_seen#": T, "batch": 1, **sizes}
    if tree.whole.lookups or any(node.type.dtype != "real" for node in inputs):
        return
    given = drawn(attend, known)
    paths = [each.node for rank in tree.ranks for each in (rank.u, rank.w)]
    gates = [] if tree.gate is None else [tree.gate.node]
    of = {n.op.name: n.id for n in inputs}
    with torch.no_grad():
        for name, x in given.items():
            made = [id for id in (*paths, *gates) if of[name] in (id, *attend.body.ancestors(id))]
            if made:
                x.copy_(-x.abs() / 2 if {*made} & {*gates} else x / (1 + x.norm(dim=-1).max()))
    trial = TreeTrial(tree, attend, known, given)
    yield Check("a tree of spans", lambda: _tree_off(trial))
    if tree.whole.slopes is not None:
        yield Check("gradient, down the tree", lambda: _tree_slopes_off(trial), GRADIENT_LIMIT)


def _tree_off(trial: TreeTrial) -> float:
    """How far the sum by spans is from that over all pairs."""
    (wanted,) = trial.case.values(trial.case.fold.node)
    return distance(trial.forward()[0], trial.case.as_made(wanted.detach()))


def _tree_slopes_off(trial: TreeTrial) -> float:
    """How far the gradients of what enters are, at most."""
    (wanted,) = trial.case.values(trial.case.fold.node)
    d = torch.randn(wanted.shape, generator=torch.Generator().manual_seed(1)).double()
    found = trial.gradients(trial.case.as_made(d).contiguous())
    return _furthest(found, trial.case.inputs, [wanted], [d])


TOKENS_OF_TREE = 140
"""How many tokens those of a tree are: three of the smallest spans."""


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
    given = (trial.as_made(x, name) for name, x in zip(trial.made, d, strict=True))
    found = trial.gradients(*(x.contiguous() for x in given))
    return _furthest(found, trial.inputs, wanted, d)


def _furthest(
    found: Mapping[str, Tensor], inputs: Mapping[str, Tensor], wanted: list[Tensor],
    d: list[Tensor],
) -> float:  # fmt: skip
    """How far gradients of what enters are from those of results, where `d` arrives, at most."""
    learned = {name: x for name, x in inputs.items() if x.requires_grad}
    slopes = torch.autograd.grad(wanted, [*learned.values()], d, allow_unused=True)
    errors = [0.0]
    for (name, x), slope in zip(learned.items(), slopes, strict=True):
        right = torch.zeros_like(x) if slope is None else slope
        error = float((found[name] - right).norm()) / max(float(right.norm()), 1e-3)
        errors.append(error if math.isfinite(error) else math.inf)
    return max(errors)
