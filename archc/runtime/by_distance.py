"""What pairs of tokens look up in a table by their distance, and sums of what they bring there.

An index at [T, S] that is of t - s alone has one number for each diagonal. So a value is taken once
for each diagonal of a row, and moved to its pair; a gradient is moved back, and summed by a product
with a matrix of zeros and ones: no two pairs add to one place in memory.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from archc.runtime.layers import one_hot_rows

FEW_READERS = 16
"""For fewer, rows of a table are looked up to multiply, in place of products with all of them."""


PRODUCTS = 1 << 26
"""So many products of tokens with rows of a table are in memory at once."""


BESIDE = 256
"""So many tokens read are done at once where readers are fewer."""


class TakenColumns(torch.autograd.Function):
    """Columns of x [..., W] by an index [J]: [..., J]."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, index: Tensor) -> Tensor:
        return x.index_select(-1, index)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
        x, index = inputs
        ctx.save_for_backward(index)
        ctx.save_for_forward(index)
        ctx.count = x.shape[-1]

    @staticmethod
    def backward(ctx: Any, *d: Tensor) -> tuple[Tensor, None]:
        (slope,), (index,) = d, ctx.saved_tensors
        return slope @ one_hot_rows(index, ctx.count, slope.dtype), None

    @staticmethod
    def jvp(ctx: Any, *d: Any) -> Tensor:
        return d[0].index_select(-1, ctx.saved_tensors[0])


def diagonals(at: Tensor) -> Tensor:
    """What an index at [T, S] is on each diagonal, from that of the last row and the first column
    on: [T + S - 1]."""
    return torch.cat([at[:, 0].flip(0), at[0, 1:]])


def take_by_distance(x: Tensor, at: Tensor) -> Tensor:
    """x [..., T or 1, W] at an index [T, S] of the distance alone -> [..., T, S]."""
    T, S = at.shape
    if not at.numel():
        return x[..., :1].expand(*x.shape[:-2], T, S)
    each = TakenColumns.apply(x, diagonals(at))  # row t stands T - 1 - t to the right
    each = each.expand(*each.shape[:-2], T, T + S - 1)
    if T == 1:
        return each
    moved = each.flatten(-2)[..., T - 1 : T - 1 + T * (T + S - 2)]
    return moved.unflatten(-1, (T, T + S - 2))[..., :S]


def sums_by_distance(x: Tensor, at: Tensor, count: int) -> Tensor:
    """Sums of x [..., T, S] along s by what an index [T, S] of the distance alone is there:
    [..., T, count]."""
    T, S = at.shape
    if not at.numel():
        return x.sum(-1, keepdim=True).expand(*x.shape[:-1], count)
    if T > 1:
        x = F.pad(x, (0, T - 2)).flatten(-2)
        x = F.pad(x, (T - 1, 1)).unflatten(-1, (T, T + S - 1))
    return x @ one_hot_rows(diagonals(at), count, x.dtype)


def products_by_distance(x: Tensor, table: Tensor, at: Tensor) -> Tensor:
    """The product of each x [..., S, K] and the row of a table [..., W, K] at an index [T, S] of
    the distance alone: [..., T, S]."""
    if at.shape[0] < FEW_READERS or not at.numel():
        return torch.einsum("...sk,...tsk->...ts", x, table[..., at, :])
    each = math.prod(torch.broadcast_shapes(x.shape[:-2], table.shape[:-2])) * table.shape[-2]
    most = max(at.shape[0], BESIDE)  # of more, a row has few pairs on most diagonals
    step = max(1, min(PRODUCTS // max(1, each), most))
    parts = [(x[..., s : s + step, :], at[:, s : s + step].mT) for s in range(0, at.shape[1], step)]
    made = [take_by_distance(own @ table.mT, index) for own, index in parts]
    return (made[0] if len(made) == 1 else torch.cat(made, -2)).mT
