"""Lists of what readers have chosen, for kernels that walk them."""

from __future__ import annotations

import torch
from torch import Tensor

from archc.runtime.kernels import block_of, processors_of

AT_ONCE = 1 << 24
"""Of so many truth values a list is made at once, so that it takes little memory."""


def chosen_places(chosen: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """The places along the last dim that hold, in order, and how many these are:
    [B, T, ..., N] -> [B, T, ..., most] and [B, T, ...]. There are at most so many."""
    rows = max(1, AT_ONCE // max(1, chosen[:, :1].numel()))
    made = [_places(each, most) for each in chosen.split(rows, 1)]
    listed, count = zip(*made, strict=True)
    return torch.cat(listed, 1), torch.cat(count, 1)


def _places(chosen: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """The same for few readers."""
    place = chosen.cumsum(-1, dtype=torch.int32)
    at = torch.where(chosen, place - 1, most).clamp(max=most).long()
    blocks = torch.arange(chosen.shape[-1], device=chosen.device, dtype=torch.int32)
    made = blocks.new_zeros((*chosen.shape[:-1], most + 1))
    made.scatter_(-1, at, blocks.expand(at.shape))
    return made[..., :most].contiguous(), place[..., -1].clamp(max=most)


def readers_of(listed: Tensor, count: Tensor, blocks: int) -> tuple[Tensor, Tensor]:
    """For each block the readers that have chosen it, in order, and where these begin and end:
    [B, T, ..., most] and [B, T, ...] -> [B, ..., T most] and [B, ..., blocks + 1]."""
    most = listed.shape[-1]
    there = torch.arange(most, device=listed.device) < count[..., None]
    block = torch.where(there, listed, blocks).movedim(1, -2).flatten(-2)
    ordered, order = block.sort(dim=-1, stable=True)
    begin = torch.arange(blocks + 1, device=listed.device, dtype=listed.dtype)
    begin = begin.expand(*block.shape[:-1], blocks + 1).contiguous()
    begins = torch.searchsorted(ordered.contiguous(), begin, out_int32=True)
    return (order // most).to(torch.int32).contiguous(), begins.contiguous()


def choice_blocks(
    program: str, dtype: torch.dtype, heads: int, size: int, *dims: int
) -> tuple[int, int, dict]:
    """How many rows and how many tokens read are in a block of a kernel of chosen blocks of a size,
    and how it is launched. Of readers, rows are the heads of one; `dims` are the lengths of
    vectors."""
    wide = max(block_of(each) for each in dims)
    small = dtype.itemsize == 4 or wide > 128
    columns = block_of(size, 32 if small else 64)
    if program == "tokens":
        return 32, columns, {"num_warps": 8 if small else 4, "num_stages": 1 if small else 2}
    rows = block_of(heads, 128)
    few = 2 if program == "readers" and rows == 16 else 4
    warps = 8 if rows > 64 else few
    return rows, columns, {"num_warps": warps, "num_stages": 1 if small else 2}


def choice_parts(programs: int, device: torch.device) -> int:
    """In how many parts the readers of a block are walked: some blocks have many more of them than
    others."""
    return min(8, max(4, 8 * processors_of(device) // programs))
