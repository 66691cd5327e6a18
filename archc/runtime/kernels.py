"""Functions around the launches of kernels of chunks."""

from __future__ import annotations

import math
import warnings
from functools import cache

import torch
from torch import Tensor

from archc.runtime.ops import transformed
from archc.runtime.optional import triton
from archc.runtime.repeated import learns


def block_of(size: int, most: int = 1 << 20) -> int:
    """The length of a tile along an axis: a power of 2, long enough for products of matrices."""
    length = 1 << (size - 1).bit_length() if size > 16 else 16  # `min` and `max` take three times
    return length if length < most else most


def is_short(dtype: torch.dtype, dim: int) -> bool:
    """Whether programs of a walk share a state's dim in short blocks, where each has all of its
    other `dim`: in float32 both parts of the factors of a product are in registers beside it. Of
    longer dims 8 warps have no more room for it."""
    return dtype.itemsize == 4 and 64 < dim <= 128


def block_of_walk(dtype: torch.dtype, size: int, dim: int) -> int:
    """The length of a block of a dim of that size that programs of a walk share."""
    return block_of(size, 32 if is_short(dtype, dim) else 64)


def warps_of_walk(dtype: torch.dtype, dim: int, usual: int) -> int:
    """The warps of a program of a walk: of short blocks two programs run at once."""
    return 4 if is_short(dtype, dim) else usual


def in_tiles(chunk: int | None) -> int | None:
    """The length of the tiles of a chunk, of whose rows kernels mask those that are none."""
    return None if chunk is None else block_of(chunk)


def by_kernels(chunk: int | None, *tensors: Tensor) -> bool:
    """Whether kernels can do it: on a GPU, in their dtypes, in chunks of their lengths."""
    kinds, device = (torch.float32, torch.bfloat16, torch.float16), tensors[0].device
    if device.type != "cuda" or chunk not in (16, 32, 64):
        return False
    for x in tensors:
        if x.dtype not in kinds or x.device != device:
            return False
    return has_triton()


def has_triton() -> bool:
    """Whether there is Triton, which is told if not; refused if it is older than what kernels are
    written for."""
    if triton is None:
        warnings.warn("Triton is not installed: the eager form runs on the GPU", stacklevel=2)
        return False
    major, minor, *_ = triton.__version__.split(".", 2)
    if (int(major), int(minor)) < (3, 5):
        raise RuntimeError(
            f"the kernels of this file need Triton 3.5 or newer, got {triton.__version__}; without "
            "Triton it runs in PyTorch"
        )
    return True


def settings_of(dtype: torch.dtype, warps: int, *loaded: int, registers: int = 0) -> dict:
    """How a kernel is launched. One that walks, and loads so many bytes at each chunk, loads as
    many chunks ahead as there is room for beside the operands of products, in float32 twice as
    many bytes as elsewhere. `registers` of a thread, so that more programs run at once, are kept
    to where little is spilled for it (`code_that_fits`)."""
    room = 232_448 if dtype.itemsize == 2 else 98_304
    stages = min(3, room // sum(loaded)) if loaded else 1
    most = {"maxnreg": registers} if registers and torch.version.hip is None else {}
    return {"num_warps": warps, "num_stages": max(1, stages), **most}


def warps_for(dtype: torch.dtype, *dims: int) -> int:
    """The warps of a program that holds much: half as many of short dims in 16 bits."""
    return 4 if dtype.itemsize == 2 and max(dims) <= 64 else 8


def chunks_of_segment(
    programs: int, chunks: int, device: torch.device, passes: int = 2, each: int = 1
) -> int:
    """How many chunks a walk has in each segment of a sequence; 0 where it walks whole sequences.

    Segments are walked in some passes, all at once, and joined one after the other, where `each`
    takes as long as so many chunks; all else is about 32 chunks. So it is for fewer programs than
    half of the processors of a GPU, where at most 3 of 4 chunks are left to walk.
    """
    processors = processors_of(device)
    if 2 * programs > processors:
        return 0
    best = math.isqrt(passes * chunks // each)
    segments = max(1, min(2 * processors // max(programs, 1), best))
    length = -(-chunks // segments)
    return length if 4 * (passes * length + each * segments + 32) <= 3 * chunks else 0


def chunks_of_run(programs: int) -> int:
    """How many chunks a program of a second launch looks at, where the first has so many programs:
    those in which nothing is left to do should be few, and the others enough for every processor.
    """
    return 16 if programs >= 4096 else 1


@cache
def processors_of(device: torch.device) -> int:
    """How many programs a GPU runs at once, at least."""
    if device.type != "cuda":
        return 0
    return torch.cuda.get_device_properties(device).multi_processor_count


def knows_borders(chunk: int | None, *tensors: Tensor) -> bool:
    """Whether an op is given packed sequences as they are: to kernels, which know their borders;
    and where torch compiles, as how many there are and how long is then no part of a graph."""
    compiling = chunk is not None and torch.compiler.is_compiling()
    return compiling or by_kernels(chunk, *tensors)


def contiguous(*tensors: Tensor | None) -> list:
    """The tensors as kernels read them: one row after the other, copied where they are not."""
    return [None if x is None else x.contiguous() for x in tensors]


def own(x: Tensor, dtype: torch.dtype) -> Tensor:
    """The values in memory that is nobody else's, one row after the other."""
    return x.to(dtype).clone(memory_format=torch.contiguous_format)


def needs_gradient(*tensors: Tensor) -> bool:
    """Whether autograd will ask for gradients of some of these, or a transform may."""
    return learns(tensors) or transformed(*tensors)


def narrowest(*tensors: Tensor) -> torch.dtype:
    """The dtype of the data: some of it may be kept more exactly. Neither of bfloat16 and float16
    holds the numbers of the other: both are data in float32."""
    return narrowest_of(*{x.dtype for x in tensors})


@cache
def narrowest_of(*dtypes: torch.dtype) -> torch.dtype:
    """The same of dtypes, of which none is there twice."""
    least = min(dtype.itemsize for dtype in dtypes)
    first, *others = (dtype for dtype in dtypes if dtype.itemsize == least)
    return torch.float32 if others else first


def sums_of(dtype: torch.dtype) -> torch.dtype:
    """In what sums are kept whose differences are wanted: as exact as data of a dtype."""
    return torch.float64 if dtype == torch.float32 else torch.float32


def solve_of(dtype: torch.dtype) -> torch.dtype:
    """In what triangular systems are multiplied: float16 has the digits of tf32 at twice its
    speed."""
    return torch.float32 if dtype == torch.float32 else torch.float16
