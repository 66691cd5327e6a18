"""Functions around kernels that walk tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from archc.runtime.kernels import has_triton, needs_gradient, processors_of
from archc.runtime.ops import transformed
from archc.runtime.repeated import learns


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


def token_options(columns: int) -> dict[str, int]:
    """The options of a launch whose threads have a column each."""
    return {"num_warps": max(1, columns // 32), "num_stages": 2}


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
    return on_gpu(*tensors) and not needs_gradient(*tensors)


def tokens_between(tokens: int, numbers: int) -> int:
    """How many tokens are learned from at a time, where the states are so many numbers: as many as
    have theirs in a gigabyte, or the square root of all; spans are alike, as each costs the CPU a
    millisecond."""
    most = max(16, int(tokens**0.5) + 1, (1 << 28) // max(numbers, 1))
    return -(-tokens // max(1, -(-tokens // most)))


def checkpointed(
    run: Callable, span: int, tokens: list, states: list, reverse: bool = False
) -> tuple:
    """The result of `run(*tokens, *states)`, one span of tokens after the other; `reverse`: from
    the last on. Only the states between them are kept: the gradient runs each span again, for the
    states inside of it (Chen et al. 2016, arXiv 1604.06174)."""
    from torch.utils.checkpoint import checkpoint

    firsts, made = range(0, tokens[0].shape[1], span), []
    for first in reversed(firsts) if reverse else firsts:
        own = [x[:, first : first + span] for x in tokens]
        found = checkpoint(run, *own, *states, use_reentrant=False, preserve_rng_state=False)
        states = found[-len(states) :]
        made.append(found[: -len(states)])
    made = made[::-1] if reverse else made
    return *(torch.cat(parts, 1) for parts in zip(*made, strict=True)), *states


def step_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype of factors of products of matrices, for a dtype of the data."""
    return dtype if dtype in (torch.bfloat16, torch.float16) else torch.float32


def step_fits(numbers: int, weights: int, moving: int, dtype: torch.dtype) -> bool:
    """Whether a program has room: 2^17 `numbers` of states in registers, or in the local memory of
    threads from about 2^15 on, where a token still takes far less than the launches of a loop;
    and in the 227 KB of shared memory of a processor (sm_90) the weights (in float32 twice, as
    products are made of parts of them), the values of a token and 16 KB for what threads share."""
    held = weights * (8 if dtype.itemsize > 2 else 2)
    shared = held + moving * 4 + (16 << 10) if weights else 0
    return numbers <= 1 << 17 and shared <= 227 << 10


def grid_split(
    batch: int, heads: int, dim: int, products: int, dtype: torch.dtype, device: torch.device
) -> tuple[int, int, int, int] | None:
    """How a recurrence is spread over a GPU, as `grid_way` says; None where it cannot be."""
    if torch.version.hip is not None:
        return None
    width = 2 if dtype.itemsize == 2 else 8
    return grid_way(batch, heads, dim, products, width, processors_of(device))


def grid_way(
    batch: int, heads: int, dim: int, products: int, width: int, processors: int
) -> tuple[int, int, int, int] | None:
    """Sequences of a program, its block of a dim, parts of a product, and how long these are: the
    way with most programs of those that `processors` run at once, as a barrier needs it, each with
    its block of all weights, of `width` bytes a number, in 227 KB of shared memory. None where
    there is no such way."""
    splits, found = 4, []
    share = step_block(-(-dim // splits))
    for rows in (16, 32, 64):
        for part in (8, 16, 32, 64):
            programs = -(-batch // rows) * heads * -(-dim // part)
            held = (products * part + rows) * splits * share * width + (16 << 10)
            if programs <= processors and held <= 227 << 10:
                found.append((programs, -rows, -part))
    if not found:
        return None
    _, rows, part = max(found)
    return -rows, -part, splits, share


def pools_after(
    op: str, states: str, pools: tuple, index: Tensor | None, into: Any, index_after: Tensor | None
) -> tuple[tuple, Tensor | None]:
    """The pools that states after the last token go into, and into which rows: those of the states
    before, unless `into` says others."""
    if into is None:
        return pools, index if index_after is None else index_after
    listed = isinstance(into, (tuple, list))
    if listed and len(into) == len(pools):
        return tuple(into), index_after
    got = f"{len(into)} of them" if listed else type(into).__name__
    text = f"{op}: `into` must be a tuple of pools, one for each of {states}; got {got}"
    raise ValueError(text) if listed else TypeError(text)


def check_pools(
    op: str, states: str, pools: tuple, index: Tensor | None, after: tuple,
    index_after: Tensor | None, like: Tensor,
) -> None:  # fmt: skip
    """Refuse what is no pool of states, of these names, or does not tell rows of one: before the
    first token of `like`, and after the last."""
    for name, pool in zip(states.split(", "), pools, strict=True):
        check_pool(op, name, pool, pool, like)
        check_rows(op, "index", index, name, pool, like)
    for place, (pool, state) in enumerate(zip(after, pools, strict=True)):
        check_pool(op, f"into[{place}]", pool, state, like)
        check_rows(op, "index_after", index_after, f"into[{place}]", pool, like)


def check_pool(op: str, name: str, pool: Tensor, state: Tensor, like: Tensor) -> None:
    """Refuse what is no pool of states like those of another, `state`."""
    if not isinstance(pool, Tensor):
        raise TypeError(f"{op}: `{name}` must be a tensor, got {type(pool).__name__}")
    if not pool.is_floating_point():
        raise TypeError(f"{op}: `{name}`, a pool, must hold real numbers, got {pool.dtype}")
    if pool.device != like.device:
        raise ValueError(f"{op}: `{name}`, a pool, is on {pool.device}, not on {like.device}")
    if pool.dim() != state.dim() or pool.shape[1:] != state.shape[1:]:
        wanted = f"must be [rows, {str([*state.shape[1:]])[1:]}"
        raise ValueError(f"{op}: `{name}`, a pool, {wanted}, got {list(pool.shape)}")


def dense_rows(pool: Tensor) -> Tensor:
    """A pool as kernels read it, each of its rows contiguous: copied where they are not."""
    dense = pool.is_contiguous() or (len(pool) > 0 and pool[0].is_contiguous())
    return pool if dense else pool.contiguous()


def check_dense(op: str, name: str, pool: Tensor) -> None:
    """Refuse a pool that a kernel cannot write: one row of which is not contiguous, or lies in the
    memory of another, as in what was expanded."""
    if dense_rows(pool) is not pool:
        raise ValueError(
            f"{op}: each row of `{name}`, a pool, must be contiguous for a kernel to write it, got"
            f" strides {list(pool.stride())} of shape {list(pool.shape)}"
        )
    apart = pool.is_contiguous() or len(pool) < 2 or pool.stride(0) >= pool[0].numel()
    if not apart:
        raise ValueError(
            f"{op}: rows of `{name}`, a pool, must not share memory for a kernel to write them, got"
            f" strides {list(pool.stride())} of shape {list(pool.shape)}"
        )


def check_rows(
    op: str, name: str, index: Tensor | None, pool: str, states: Tensor, like: Tensor
) -> None:
    """Refuse an index that does not tell a row of a pool of states for each sequence of `like`;
    where it is not on a GPU, also one of rows that are not there."""
    rows, batch = states.shape[0], like.shape[0]
    if index is None and rows < batch:
        raise ValueError(
            f"{op}: without `{name}`, `{pool}` is a pool of {rows} states for {batch} sequences"
        )
    if index is None:
        return
    if not isinstance(index, Tensor):
        raise TypeError(f"{op}: `{name}` must be a tensor, got {type(index).__name__}")
    if index.dtype not in (torch.int32, torch.int64) or index.shape != (batch,):
        got = f"got {index.dtype} of shape {list(index.shape)}"
        raise ValueError(f"{op}: `{name}` must be integers [{batch}], {got}")
    if index.device != like.device:
        raise ValueError(f"{op}: `{name}` is on {index.device}, not on {like.device}")
    if index.device.type == "cpu" and batch and not torch.compiler.is_compiling():
        last = int(index.max())
        if last >= rows:
            wanted = f"must be below {rows}, the rows of `{pool}`"
            raise ValueError(f"{op}: `{name}` {wanted}, got {last}")


def check_learns(name: str, *tensors: Tensor) -> None:
    """Refuse tensors that learn: states are written in place."""
    if learns(tensors):
        raise ValueError(f"{name} has no gradient: call it under torch.no_grad()")
    if transformed(*tensors):
        raise ValueError(f"{name} has no transforms of torch.func, and no derivative forward")


def shares_memory(x: Tensor, y: Tensor) -> bool:
    """Whether two tensors may be views of the same memory; to a compiler, whether they are one."""
    if torch.compiler.is_compiling():
        return x is y
    try:
        return x.untyped_storage().data_ptr() == y.untyped_storage().data_ptr()
    except AttributeError:  # one is no tensor, which is refused later
        return False


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
