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


RATES = 1 << 16
"""Probabilities of dropout are multiples of 1/RATES."""


def random_numbers(seed: Tensor, counter: Tensor) -> Tensor:
    """The eight numbers of 16 bits of each counter, along a further dim: the lower and the upper
    half of each word that Philox 4x32-10 makes, as Triton's `randint4x` does."""
    words = words_of(seed, counter)
    return torch.stack((words % RATES, words // RATES), -1).flatten(-2)


def words_of(seed: Tensor, counter: Tensor) -> Tensor:
    """The four words of 32 bits of each counter, along a further dim."""
    none = torch.zeros_like(counter)
    c = [counter & WORD, (counter >> 32) & WORD, none, none]
    key = [seed & WORD, (seed >> 32) & WORD]
    for _ in range(ROUNDS):
        high0, low0 = words_of_product(MULTIPLIERS[0], c[0])
        high1, low1 = words_of_product(MULTIPLIERS[1], c[2])
        c = [high1 ^ c[1] ^ key[0], low1, high0 ^ c[3] ^ key[1], low0]
        key = [(key[0] + KEYS[0]) & WORD, (key[1] + KEYS[1]) & WORD]
    return torch.stack(c, -1)


def words_of_product(a: int, b: Tensor) -> tuple[Tensor, Tensor]:
    """The high and the low 32 bits of a product of two numbers of 32 bits."""
    low, high = (b & 0xFFFF) * a, (b >> 16) * a
    whole_low = (low & WORD) + ((high & 0xFFFF) << 16)
    return (low >> 32) + (high >> 16) + (whole_low >> 32), whole_low & WORD


def factor_of_seed(seed: Tensor | None, shape: Sequence[int], p: float, like: Tensor) -> Tensor:
    """The factor of dropout that kernels make of a seed: of each row of the last dim the numbers of
    as many counters as it has eights; ones without a seed."""
    if seed is None:
        return like.new_ones(()).expand(tuple(shape))
    rows, dim = (prod(shape[:-1]), shape[-1]) if len(shape) > 2 else (prod(shape), 1)
    counters = torch.arange(rows * -(-dim // 8), device=seed.device)
    numbers = random_numbers(seed, counters).reshape(rows, -1)[:, :dim].reshape(tuple(shape))
    dropped = int(p * RATES)
    kept = RATES / (RATES - dropped) if dropped < RATES else 0.0
    return (numbers >= dropped).to(like.dtype) * kept
