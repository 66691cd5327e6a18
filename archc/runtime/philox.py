"""Counter-based random numbers on torch tensors: Philox 4x32-10 (Salmon et al. 2011)."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor

ROUNDS = 10
WORD = 0xFFFFFFFF
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
KEYS = (0x9E3779B9, 0xBB67AE85)


def uniform(seed: Tensor, counter: Tensor) -> Tensor:
    """The four numbers in [0, 1) of each counter, along a further dim: Philox 4x32-10, as Triton's
    `rand4x` makes them."""
    none = torch.zeros_like(counter)
    c = [counter & WORD, (counter >> 32) & WORD, none, none]
    key = [seed & WORD, (seed >> 32) & WORD]
    for _ in range(ROUNDS):
        high0, low0 = words_of_product(MULTIPLIERS[0], c[0])
        high1, low1 = words_of_product(MULTIPLIERS[1], c[2])
        c = [high1 ^ c[1] ^ key[0], low1, high0 ^ c[3] ^ key[1], low0]
        key = [(key[0] + KEYS[0]) & WORD, (key[1] + KEYS[1]) & WORD]
    words = torch.stack(c, -1)
    signed = torch.where(words >= 1 << 31, words - (1 << 32), words)
    positive = torch.where(signed < 0, -signed - 1, signed)
    return positive.to(torch.float32) * 4.6566127342e-10


def words_of_product(a: int, b: Tensor) -> tuple[Tensor, Tensor]:
    """The high and the low 32 bits of a product of two numbers of 32 bits."""
    low, high = (b & 0xFFFF) * a, (b >> 16) * a
    whole_low = (low & WORD) + ((high & 0xFFFF) << 16)
    return (low >> 32) + (high >> 16) + (whole_low >> 32), whole_low & WORD


def factor_of_seed(
    seed: Tensor | None, shape: Sequence[int], p: float, like: Tensor
) -> Tensor:
    """The factor of dropout that kernels make of a seed: of each row of the last dim the numbers of
    as many counters as it has fours; ones without a seed."""
    if seed is None:
        return like.new_ones(()).expand(tuple(shape))
    rows, dim = (prod(shape[:-1]), shape[-1]) if len(shape) > 2 else (prod(shape), 1)
    counters = torch.arange(rows * -(-dim // 4), device=seed.device)
    drawn = uniform(seed, counters).reshape(rows, -1)[:, :dim].reshape(tuple(shape))
    kept = 1 / (1 - p) if p < 1 else 0.0
    return (drawn >= p).to(like.dtype) * kept
