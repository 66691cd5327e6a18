"""Functions around kernels that walk tokens: printed into generated files, never imported."""

from __future__ import annotations

import torch
import triton.language as tl
from archc.backends.triton.pieces import has_triton, kernel
from torch import Tensor


def step_block(size: int, least: int = 16) -> int:
    """How long the tile of a dim is that a program has all of: a power of 2."""
    return max(least, 1 << (size - 1).bit_length())


def step_part(size: int, others: int, least: int, programs: int) -> int:
    """How long a program's block of a dim is: 8192 numbers of a state, so that long rows are read
    from memory; shorter, down to 16, where a GPU would have fewer programs than 4 a processor."""
    part = min(step_block(size, least), max(least, 8192 // others))
    while part > max(least, 16) and programs * -(-size // part) < 4 * 132:
        part //= 2
    return part


def step_warps(numbers: int, most: int) -> int:
    """How many warps a program has for the numbers of 32 bits that it holds: 64 a thread, or a few
    more, as vectors beside a matrix are."""
    return min(most, 1 << (max(0, numbers * 7 // 8 - 1) // 2048).bit_length())


@kernel
def tile_conjugate_gradients(A, b, steps):
    """z with A z = b for a symmetric positive definite matrix: at most `steps` times; a system that
    is solved stays as it is."""
    z, r, p = tl.zeros_like(b), b, b
    rest = tl.sum(b * b, 0)
    done = rest * 1e-14
    for _ in range(steps):
        y = tl.sum(A * p[None, :], 1)
        slope = tl.sum(p * y, 0)
        going = rest > done
        scale = tl.where(going, rest / tl.where(going, slope, 1.0), 0.0)
        z += scale * p
        r -= scale * y
        new = tl.sum(r * r, 0)
        p = r + tl.where(going, new / tl.where(going, rest, 1.0), 0.0) * p
        rest = new
    return z


def on_gpu(*tensors: Tensor) -> bool:
    """Whether kernels can do it: on one GPU, in their dtypes."""
    kinds, device = (torch.float32, torch.bfloat16, torch.float16), tensors[0].device
    if device.type != "cuda":
        return False
    for x in tensors:
        if x.device != device or x.dtype not in kinds or not x.numel():
            return False
    return has_triton()


def by_steps(*tensors: Tensor) -> bool:
    """Whether a kernel may walk the tokens: on a GPU, where nothing learns."""
    learns = torch.is_grad_enabled() and any(x.requires_grad for x in tensors)
    return on_gpu(*tensors) and not learns


def step_numbers(dtype: torch.dtype) -> dict:
    """How kernels multiply matrices for a dtype of the data."""
    dot = {torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}.get(dtype, tl.float32)
    return {"DOT": dot, "PRECISION": "tf32x3"}


def step_fits(numbers: int, weights: int, moving: int, dtype: torch.dtype) -> bool:
    """Whether a program has room: 2^15 `numbers` of states in registers, which are half of them;
    and in the 227 KB of shared memory of a processor (sm_90) the weights (in float32 twice, as
    products are made of parts of them), the values of a token and 16 KB for what threads share."""
    held = weights * (8 if dtype.itemsize > 2 else 2)
    shared = held + moving * 4 + (16 << 10) if weights else 0
    return numbers <= 1 << 15 and shared <= 227 << 10


def check_pool(name: str, pool: Tensor, like: Tensor, index: Tensor | None) -> None:
    """Refuse a pool of states in which there is no row for each sequence of `like`."""
    batch = like.shape[0]
    if not pool.is_floating_point():
        raise TypeError(f"{name}: a pool must hold real numbers, got {pool.dtype}")
    if pool.device != like.device:
        raise ValueError(f"{name}: a pool is on {pool.device}, not on {like.device}")
    if index is None and pool.shape[0] < batch:
        raise ValueError(f"{name}: a pool of {pool.shape[0]} states for {batch} sequences")
    if index is None:
        return
    if not isinstance(index, Tensor):
        raise TypeError(f"{name}: an index must be a tensor, got {type(index).__name__}")
    if index.dtype not in (torch.int32, torch.int64) or index.shape != (batch,):
        got = f"got {index.dtype} of shape {list(index.shape)}"
        raise ValueError(f"{name}: an index must be integers [{batch}], {got}")
    if index.device != like.device:
        raise ValueError(f"{name}: an index is on {index.device}, not on {like.device}")


def check_learns(name: str, *tensors: Tensor) -> None:
    """Refuse tensors that learn: states are written in place."""
    if torch.is_grad_enabled() and any(x.requires_grad for x in tensors):
        raise ValueError(f"{name} has no gradient: call it under torch.no_grad()")


def shares_memory(x: Tensor, y: Tensor) -> bool:
    """Whether two tensors may be views of the same memory; to a compiler, whether they are one."""
    if torch.compiler.is_compiling():
        return x is y
    return x.untyped_storage().data_ptr() == y.untyped_storage().data_ptr()


def rows_of_pool(pool: Tensor, index: Tensor | None, batch: int) -> Tensor:
    """The states of `batch` sequences, in float32 at least; zeros where the index is negative."""
    wide = torch.promote_types(pool.dtype, torch.float32)
    if index is None:
        return pool[:batch].to(wide)
    there = (index >= 0).reshape(-1, *[1] * (pool.dim() - 1))
    return torch.where(there, pool[index.clamp(min=0)], 0.0).to(wide)


def rows_to_pool(pool: Tensor, index: Tensor | None, rows: Tensor) -> None:
    """Write states into their rows of a pool; none where the index is negative."""
    if index is None:
        pool[: rows.shape[0]] = rows.to(pool.dtype)
    else:
        pool[index[index >= 0]] = rows[index >= 0].to(pool.dtype)
