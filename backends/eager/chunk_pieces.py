"""Functions that the chunked forms of recurrences are made of, written out into each generated file
that needs them. Nothing is written in place, so that autograd and torch.compile can look inside."""

import math

import torch
from torch import Tensor
from torch.nn import functional as F


def to_chunks(x: Tensor, chunk: int, outer: int = 0, fill: float = 0.0) -> Tensor:
    """Tokens cut into chunks, the last filled up: x [B, T, heads..., ...] -> [B, n, heads...,
    chunk, ...], where `outer` says how many dims are heads."""
    missing = -x.shape[1] % chunk
    if missing:
        x = torch.cat([x, x.new_full((1, 1), fill).expand(missing, *x.shape[2:]).expand(x.shape[0], missing, *x.shape[2:])], 1)
    x = x.unflatten(1, (x.shape[1] // chunk, chunk))
    return x.movedim(2, 2 + outer).contiguous()
