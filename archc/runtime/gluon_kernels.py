"""Kernels of Gluon, a part of Triton whose warps may have work of their own: one loads by the copy
engine of Hopper while two groups of others multiply in turns."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from archc.runtime.folds import is_copied
from archc.runtime.jit import kernel
from archc.runtime.kernels import block_of
from archc.runtime.optional import fence_async_shared, gluon, triton

SPECIALIZED_FROM = 1024
"""Of so many tokens walked such kernels take less time than those of Triton."""

ROWS_FROM = 1 << 18
"""Of so many vectors of readers in all, too: of half as many they often take more, as more programs
of Triton's run at once."""

BLOCKS = {"forward": (128, 128), "readers": (128, 128), "tokens": (64, 128)}
"""How many readers and how many tokens read are in a block of such a kernel."""


def gluon_kernel(function: Any = None, *, varying: tuple[str, ...] = ()) -> Any:
    """A kernel of Gluon, or a function that one calls, where there is Gluon."""
    return kernel(function, varying=varying, of=gluon)


def are_specialized(
    walked: int, borders: Tensor | None, *read: Tensor, spans: bool = False
) -> bool:
    """Whether the kernel of Gluon is launched: it is written for the warps and the products of
    Hopper, and for Gluon as Triton 3.6 has it, of vectors of 128 or 64 numbers in 16 bits, between
    `spans` of 128 in bfloat16: these were held against float64 there. Blocks of packed sequences,
    which have `borders`, may reach into another sequence: they are loaded with a mask, which the
    copy engine has not."""
    x = read[0]
    few = walked < SPECIALIZED_FROM or x.numel() < ROWS_FROM * x.shape[-1]
    if borders is not None or few:
        return False
    wide = x.shape[-1] in ((128,) if spans else (64, 128))
    alike = wide and all(each.shape[-1] == x.shape[-1] for each in read)
    return alike and _are_known(read, torch.bfloat16 if spans else x.dtype)


def _are_known(read: tuple[Tensor, ...], dtype: torch.dtype = torch.bfloat16) -> bool:
    """Whether kernels by warps are known to read such vectors, in such a dtype of 16 bits."""
    if dtype not in (torch.bfloat16, torch.float16) or not _is_hopper(read[0].device):
        return False
    return all(each.dtype == dtype and is_copied(each) for each in read)


def _is_hopper(device: torch.device) -> bool:
    """Whether a device has what kernels of Gluon are written for, and Gluon is as Triton 3.6 has
    it."""
    if device.type != "cuda" or torch.version.hip is not None or fence_async_shared is None:
        return False
    hopper = torch.cuda.get_device_capability(device) == (9, 0)
    return hopper and triton.__version__.startswith("3.6.")


def are_in_columns(*states: Tensor) -> bool:
    """Whether the kernel of Gluon solves for one token with these states: in float32, with as many
    rows as threads were held against float64 with."""
    sizes = {size for x in states for size in x.shape[-2:]}
    copied = all(x.dtype == torch.float32 and is_copied(x) for x in states)
    return sizes <= {64, 128} and copied and _is_hopper(states[0].device)


def specialized_blocks(program: str) -> tuple[int, int, dict]:
    """How long blocks of such a kernel are, and how it is launched: with the warps of one of its
    two groups."""
    return *BLOCKS[program], {"num_warps": 4, "num_stages": 1}


HALVED = {"num_warps": 4, "num_stages": 1}
"""How a kernel by warps is launched that sums one half of wide vectors in each of two groups."""


def are_halved(rows: int, *read: Tensor) -> bool:
    """Whether that one is launched for blocks of so many rows: what it sums has two groups of
    warps full of registers, and two blocks of 64 tokens beside the rows fill shared memory."""
    blocks = [block_of(x.shape[-1]) for x in read]
    return rows == 64 and max(blocks) == 512 and sum(blocks) <= 576 and _are_known(read)
