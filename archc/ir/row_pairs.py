"""Sums between the rows of a chunk, pair by pair, in plain torch for clarity alone: what the
meanings of chunk ops have in common.

Rows are the first dim of a tensor, columns the second.
"""

from __future__ import annotations

import torch
from torch import Tensor


def moved(data: Tensor, along: int, steps: int, fill: float) -> Tensor:
    """The tensor with each element `steps` later; `fill` where nothing comes from."""
    length = data.shape[along]
    steps = max(-length, min(length, steps))
    kept = data.narrow(along, max(0, -steps), length - abs(steps))
    new = torch.full_like(data.narrow(along, 0, abs(steps)), fill)
    return torch.cat([new, kept] if steps > 0 else [kept, new], along)


def spans(gates: Tensor, strict: bool, exclusive: bool) -> Tensor:
    """[rows, ...] -> [rows, columns, ...], -inf where the pair is not kept."""
    rows = len(gates)
    later = _kept(rows, True, False).reshape(rows, rows, *[1] * (gates.dim() - 1))
    sums = torch.where(later, gates[:, None], 0.0).cumsum(0)
    if exclusive:
        sums = moved(sums, 0, 1, 0)
    kept = _kept(rows, strict, exclusive).reshape(later.shape)
    return torch.where(kept, sums, -torch.inf)


def decays(gates: Tensor, strict: bool, exclusive: bool, summed: bool) -> Tensor:
    """How pairs of rows decay, [rows, columns, ...]: by gates, or by gates that are `summed`."""
    return (differences if summed else spans)(gates, strict, exclusive).exp()


def differences(sums: Tensor, strict: bool, exclusive: bool) -> Tensor:
    """Running sums of gates [rows, ...] -> their spans [rows, columns, ...]."""
    until = moved(sums, 0, 1, 0) if exclusive else sums
    kept = _kept(len(sums), strict, exclusive)
    kept = kept.reshape(*kept.shape, *[1] * (sums.dim() - 1))
    return torch.where(kept, until[:, None] - sums[None], -torch.inf)


def _kept(rows: int, strict: bool, exclusive: bool) -> Tensor:
    """The pairs (i, j) that are kept, as bools."""
    i, j = torch.arange(rows)[:, None], torch.arange(rows)
    return j < i if strict or exclusive else j <= i


def between(spans: Tensor, strict: bool, exclusive: bool) -> Tensor:
    """Cotangents of spans [rows, columns, ...] -> sums over the pairs around each row."""
    rows = len(spans)
    kept = _kept(rows, strict, exclusive).reshape(rows, rows, *[1] * (spans.dim() - 2))
    spans = torch.where(kept, spans, 0.0)
    found = []
    for r in range(rows):
        first = r + 1 if exclusive else r
        found.append(spans[first:, :r].sum((0, 1)))
    return torch.stack(found) if found else spans.sum(1)
