"""Functions around the ops of attentions."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from archc.runtime.kernels import block_of, has_triton, processors_of
from archc.runtime.ops import transformed


def by_folds(*tensors: Tensor) -> bool:
    """Whether kernels can do it: on a GPU, in their dtypes, and with no transform of torch.func, or
    forward mode, looking on."""
    kinds, device = (torch.float32, torch.bfloat16, torch.float16), tensors[0].device
    if device.type != "cuda":
        return False
    for x in tensors:
        if x.device != device or not x.numel() or (x.is_floating_point() and x.dtype not in kinds):
            return False
    return not transformed(*tensors) and has_triton()


class RunningSums(torch.autograd.Function):
    """The sum of the tokens up to each one, along the last dim, which both ways is contiguous."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.contiguous().cumsum(-1)

    @staticmethod
    def backward(ctx: Any, *d: Tensor) -> Tensor:
        return d[0].contiguous().flip(-1).cumsum(-1).flip(-1)


def running_sums(x: Tensor) -> Tensor:
    """The sum of the tokens up to each one: [B, S, ...] -> [B, S, ..., 2], a number and what it
    lacks, as differences of large sums may be small. What forgets all does so by -1e5 already. The
    tokens of a head lie side by side in memory."""
    total = RunningSums.apply(x.movedim(1, -1).double().clamp(min=-1e5))
    high = total.float()
    made = torch.stack((high, (total - high.double()).detach().float()))
    return made.movedim(0, -1).movedim(-2, 1)


def of_running_sums(d: Tensor) -> Tensor:
    """The gradient of `running_sums`: what a number lacks is a constant."""
    return torch.stack((d, torch.zeros_like(d)), -1)


def of_table(d: Tensor, at: Tensor, length: int) -> Tensor:
    """Sums of what stands at one index of a table, always in one order: d and at
    [B, ..., n, 2, u] -> [..., length]."""
    d, at = d.sum(0).flatten(-3).double(), at[0].flatten(-3).long().clamp(0, length - 1)
    order = at.argsort(dim=-1, stable=True)
    total = torch.nn.functional.pad(d.gather(-1, order).cumsum(-1), (1, 0))
    index = torch.arange(length, device=at.device).expand(*at.shape[:-1], length).contiguous()
    last = torch.searchsorted(at.gather(-1, order), index, right=True)
    return total.gather(-1, torch.nn.functional.pad(last, (1, 0))).diff(dim=-1)


def of_groups(d: Tensor, place: int, groups: int) -> Tensor:
    """Gradients of heads, those of a group as their sum."""
    if d.shape[place] == groups:
        return d
    return d.unflatten(place, (groups, -1)).sum(place + 1)


def vectors_of(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Vectors in a dtype, each in one piece of memory."""
    x = x.to(dtype)
    return x if x.stride(-1) == 1 else x.contiguous()


def fold_blocks(program: str, dtype: torch.dtype, *dims: int) -> tuple[int, int, dict]:
    """How many readers and how many tokens read are in a block of an attention's kernel, and how it
    is launched; `dims` are the lengths of its vectors."""
    wide = max(block_of(size) for size in dims)
    if dtype.itemsize == 4:
        rows = 32 if wide > 128 or program == "tables" else 64
        return rows, 32, {"num_warps": 4, "num_stages": 1}
    if wide > 128:
        rows = 64 if program == "forward" else 32
        return rows, 32, {"num_warps": 4, "num_stages": 2 if program == "forward" else 1}
    if program == "forward":
        return 64, 64, {"num_warps": 4, "num_stages": 3}
    if program == "tables":
        return 64, 64, {"num_warps": 4, "num_stages": 2}
    if program == "readers":
        return 128, 64, {"num_warps": 8, "num_stages": 3}
    return 32, 64, {"num_warps": 4, "num_stages": 3}


def part_blocks(
    dtype: torch.dtype, rows: int, programs: int, tokens: int, device: torch.device, *dims: int
) -> tuple[int, int, int, dict]:
    """Of a kernel of few readers: how many rows and how many tokens read are in a block, into how
    many parts the tokens are split, and how it is launched. `rows`: how many there are for each of
    the `programs`; `dims` are the lengths of vectors. There are parts enough to keep every
    processor busy to the end, and none is shorter than 4 blocks."""
    wide, block = max(block_of(size) for size in dims), block_of(rows, 64)
    columns = 32 if dtype.itemsize == 4 or wide > 128 else 64
    programs *= -(-rows // block)
    parts = min(-(-8 * processors_of(device) // programs), -(-tokens // (4 * columns)), 64)
    stages = 2 if dtype.itemsize == 4 or wide > 128 else 3
    return block, columns, max(1, parts), {"num_warps": 4, "num_stages": stages}


def no_second_gradient_of_fold(ctx: Any, *given: Tensor) -> None:
    """The gradient of a gradient: refused."""
    raise RuntimeError(
        "kernels of an attention have a gradient, but no gradient of that gradient: on a CPU, or "
        "where fewer than 16 tokens read, PyTorch does it and has one"
    )
