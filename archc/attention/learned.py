"""A weighted sum with the derivative of its weights, where they have one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from archc.attention.bounds import of_distance
from archc.attention.weighted_sum import WeightedSum
from archc.ir import layer as ir
from archc.ir.graph import Graph

Slopes = Callable[[Graph, Sequence[str]], Graph | str]
"""The derivative of a formula of pairs by some of its inputs, or why there is none."""


def learned(fold: WeightedSum, slopes: Slopes) -> WeightedSum:
    """The fold with the derivative of its score, and of its factor."""
    inputs = [n.op for n in fold.pairs if isinstance(n.op, ir.Input) and n.op.type.dtype == "real"]
    for lookup in fold.lookups:
        index = fold.pairs[fold.pairs.outputs[lookup.index]]
        if not of_distance(fold.pairs, index, fold.reader.name, fold.read.name):
            reason = f"`{lookup.table}` is not read by the distance of tokens alone"
            return replace(fold, unlearned=reason)
    found = slopes(fold.pairs, [op.name for op in inputs])
    if isinstance(found, str):
        return replace(fold, unlearned=found)
    return replace(fold, slopes=found)
