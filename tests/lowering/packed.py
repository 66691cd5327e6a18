"""Token regions of packed sequences, run by the tile interpreter beside the meaning of each
sequence by itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import torch
from torch import Tensor

from archc.ir.graph import Node
from archc.ir.meaning import evaluate_graph
from archc.ir.sizes import evaluate
from archc.ir.token_region import TokenRegion
from archc.lowering.token import BORDERS, Lowered
from archc.lowering.token_borders import ROWS, SEQUENCES
from archc.regions.packed import with_tails
from archc.runtime.layers import rows_of_sequences
from tests.lowering.regions import Named, Trial


@dataclass(frozen=True)
class PackedTrial(Trial):
    """A region for packed sequences of some lengths."""

    lengths: tuple[int, ...] = ()

    def alone(self, length: int) -> Trial:
        """One sequence by itself."""
        return Trial(self.region, {**self.known, "T#": length})

    def along(self, node: Node) -> bool:
        return self.region.stream in node.type.names

    def expected(
        self, dtype: torch.dtype = torch.float64, seeded: bool = True
    ) -> tuple[Named, Named, Named]:
        """Inputs, outputs and gradients of all sequences, as each has them when it is alone."""
        shared = {n.op.name: self.drawn(n, 0) for n in self.nodes() if not self.along(n)}
        each = [self.alone(length) for length in self.lengths]
        every = [
            shared | {n.op.name: a.drawn(n, self.kept) for n in self.nodes() if self.along(n)}
            for a in each
        ]
        leaves = {id(x): x.requires_grad_() for own in every for x in own.values()
                  if x.is_floating_point()}  # fmt: skip
        made = [self.made_of(a, own) for a, own in zip(each, every, strict=True)]
        outputs = {n: self.joined(n, [found[n] for found in made]) for n in made[0]}
        slopes = {f"d.{n}": self.slope(n, x) for n, x in outputs.items()}
        there = {n: x.nan_to_num() if n in self.region.tails else x for n, x in outputs.items()}
        terms = [(x * slopes[f"d.{n}"]).sum() for n, x in there.items()]
        total = torch.stack(terms).sum()
        grads = dict(zip(leaves, torch.autograd.grad(
            total, [*leaves.values()], allow_unused=True, materialize_grads=True), strict=True,
        ))  # fmt: skip
        given, wanted = Named(), Named()
        for n in self.nodes():
            name, own = n.op.name, [x[n.op.name] for x in every]
            given[name] = self.packed_of(n, [x.detach() for x in own])
            if id(own[0]) in grads:
                ds = [grads[id(x)] for x in own]
                wanted[f"d.{name}"] = self.packed_of(n, ds)
        return {**given, **slopes}, {n: x.detach() for n, x in outputs.items()}, wanted

    def slope(self, name: str, x: Tensor) -> Tensor:
        """The gradient of an output; none where a tail is undefined."""
        made = torch.randn_like(x)
        return made.where(~x.isnan(), 0.0) if name in self.region.tails else made

    def made_of(self, alone: Trial, inputs: Named) -> Named:
        """The outputs of one sequence; a tail is undefined where it would be of its past."""
        kept, region = self.kept, self.region
        sizes = {**alone.known, "T#": alone.known["T#"] + kept}
        found = evaluate_graph(alone.later(kept), inputs, sizes)
        made = {n: self.cut(region.graph.outputs[n], x, kept) for n, x in found.items()}
        for name, past in region.tails.items():
            x, count = made[name], int(evaluate(region.pasts[past].count, self.known))
            nothing = x.new_full((len(x), count, *x.shape[2:]), torch.nan)
            made[name] = torch.cat([nothing, x], 1)[:, x.shape[1] :]
        return made

    def joined(self, name: str, parts: Sequence[Tensor]) -> Tensor:
        """An output of all sequences: of a tail, a row for each."""
        return torch.cat([*parts], 0 if name in self.region.tails else 1)

    def packed_of(self, node: Node, parts: Sequence[Tensor]) -> Tensor:
        """An input of all sequences: of a past, a row for each."""
        if not self.along(node):
            return parts[0]
        own = [self.own(node, x, self.kept) for x in parts]
        axis = node.type.names.index(self.region.stream)
        return torch.cat(own, 0 if self.is_past(node) else axis)

    def ran(self, made: Lowered, given: Named, outputs: Mapping[str, Sequence[int]]) -> Named:
        """What a program makes, given its table."""
        borders = torch.tensor([0, *accumulate(self.lengths)])
        before = int(evaluate(made.before, self.known))
        rows = rows_of_sequences(borders, sum(self.lengths), before)
        known = replace(self, known={**self.known, ROWS: rows.shape[1]})
        return Trial.ran(known, made, {**given, BORDERS: rows}, outputs)


class BatchTrial(PackedTrial):
    """The same programs, of sequences of equal length and without a table."""

    def ran(self, made: Lowered, given: Named, outputs: Mapping[str, Sequence[int]]) -> Named:
        """What a program makes without a table."""
        return Trial.ran(self, made, given, outputs)


def batch_trial(region: TokenRegion, known: Mapping[str, float], length: int) -> PackedTrial:
    """Two sequences of a length, by the programs for packed sequences."""
    sizes = {**known, "batch": 2, "T#": length, SEQUENCES: 2}
    return BatchTrial(region, sizes, lengths=(length,))


def packed_trial(
    region: TokenRegion, known: Mapping[str, float], lengths: tuple[int, ...]
) -> PackedTrial:
    """A region of some sizes for sequences of these lengths."""
    sizes = {**known, "batch": 1, "T#": sum(lengths), SEQUENCES: len(lengths)}
    return PackedTrial(with_tails(region, packed=True), sizes, lengths=lengths)
