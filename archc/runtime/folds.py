"""Functions around the ops of attentions."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from archc.runtime.kernels import block_of, has_triton
from archc.runtime.ops import transformed


def by_folds(readers: int, *tensors: Tensor) -> bool:
    """Whether kernels can do it: on a GPU, in their dtypes, for readers enough to fill a block, and
    with no transform of torch.func, or forward mode, looking on."""
    kinds, device = (torch.float32, torch.bfloat16, torch.float16), tensors[0].device
    if device.type != "cuda" or readers < 16:
        return False
    for x in tensors:
        if x.device != device or not x.numel() or (x.is_floating_point() and x.dtype not in kinds):
            return False
    return not transformed(*tensors) and has_triton()


def running_sums(x: Tensor) -> Tensor:
    """The sum of the tokens up to each one: [B, S, ...] -> [B, S, ..., 2], a number and what it
    lacks, as differences of large sums may be small. What forgets all does so by -1e5 already."""
    total = x.double().clamp(min=-1e5).movedim(1, -1).cumsum(-1).movedim(-1, 1)
    high = total.float()
    return torch.stack((high, (total - high.double()).detach().float()), -1)


def of_running_sums(d: Tensor) -> Tensor:
    """The gradient of `running_sums`: what a number lacks is a constant."""
    return torch.stack((d, torch.zeros_like(d)), -1)


def vectors_of(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Vectors in a dtype, each in one piece of memory."""
    x = x.to(dtype)
    return x if x.stride(-1) == 1 else x.contiguous()


def fold_blocks(program: str, dtype: torch.dtype, *dims: int) -> tuple[int, int, dict]:
    """How many readers and how many tokens read are in a block of an attention's kernel, and how it
    is launched; `dims` are the lengths of its vectors."""
    wide = max(block_of(size) for size in dims)
    if dtype.itemsize == 4:
        rows = 32 if wide > 128 else 64
        return rows, 32, {"num_warps": 4, "num_stages": 1}
    if program == "forward":
        rows = (128, 64, {"num_warps": 8, "num_stages": 3})
        rows = (128, 64, {"num_warps": 4, "num_stages": 3}) if wide <= 64 else rows
        return rows if wide <= 128 else (64, 32, {"num_warps": 4, "num_stages": 2})
    if wide > 128:
        return 32, 32, {"num_warps": 4, "num_stages": 1}
    if program == "readers":
        return 128, 64, {"num_warps": 8, "num_stages": 2}
    return 64, 128, {"num_warps": 8, "num_stages": 2}


def no_second_gradient_of_fold(ctx: Any, *given: Tensor) -> None:
    """The gradient of a gradient: refused."""
    raise RuntimeError(
        "kernels of an attention have a gradient, but no gradient of that gradient: on a CPU, or "
        "with fewer than 16 readers, PyTorch does it and has one"
    )
