"""Values of every token so far, which get longer from call to call: kept in memory that has room
for more, so that a token costs what it is, and not what is there already."""

from functools import reduce
from typing import Any

import torch
from torch import Tensor

from archc.runtime.ops import transformed

LEAST_ROOM = 16
"""Tokens that there is room for when memory is first taken, at least."""


def in_one_dtype(*given: Tensor) -> tuple[Tensor, ...]:
    """Tensors in the widest of their dtypes, which is what PyTorch multiplies them in: kernels on a
    GPU take each as it is, and autocast chooses by itself."""
    kinds, device = {x.dtype for x in given}, given[0].device.type
    if len(kinds) < 2 or device == "cuda" or torch.is_autocast_enabled(device):
        return given
    wide = reduce(torch.promote_types, kinds)
    return tuple(x.to(wide) for x in given)


def grown(past: Tensor, new: Tensor, kept: bool = True) -> Tensor:
    """`torch.cat([past, new], 1)`: written behind `past` in place where there is room that nothing
    else was written to, else in memory of twice the length, or of as much as was reserved.

    past [B, S, ...], new [B, T, ...]. What `past` is stays as it is, also where it is continued
    twice. With gradients, and where torch compiles or exports, it is `torch.cat`. Not
    `kept`: `new` itself where nothing is in front of it, which the caller does not give away.
    """
    if torch.compiler.is_compiling():
        return torch.cat([past, new], 1)
    most, tokens = most_of(past), past.shape[1] + new.shape[1]
    if most is not None and tokens > most:
        raise ValueError(
            f"the cache is full: it has room for {most} tokens, and would have {tokens}; "
            "`state.reserve(capacity)` makes a larger one"
        )
    if not kept and not past.shape[1] and alike(past, new):
        return new
    if not alike(past, new) or transformed(past, new):
        return with_most(torch.cat([past, new], 1), most)
    if torch.is_grad_enabled():
        return with_most(one_after_other([past, new]), most)
    return with_most(behind(past, new, most), most) if new.shape[1] else past


class _Adjacent(torch.autograd.Function):
    """Tokens that lie one after the other in memory, as one value."""

    @staticmethod
    def forward(ctx: Any, *parts: Tensor) -> Tensor:
        ctx.counts = [x.shape[1] for x in parts]
        first = parts[0]
        shape = (first.shape[0], sum(ctx.counts), *first.shape[2:])
        return first.as_strided(shape, first.stride())

    @staticmethod
    def backward(ctx: Any, *arriving: Tensor) -> Any:
        return arriving[0].split(ctx.counts, 1)


def one_after_other(parts: list[Tensor]) -> Tensor:
    """`torch.cat(parts, 1)`, without a copy where they lie so already: parts of what was gathered
    in one piece."""
    if adjacent(parts):
        return _Adjacent.apply(*parts)
    return torch.cat(parts, 1)


def adjacent(parts: list[Tensor]) -> bool:
    """Whether each of some plain values begins in memory where the one before it ends."""
    if transformed(*parts) or not all(type(x) is Tensor and alike(parts[0], x) for x in parts):
        return False
    first, end = parts[0], parts[0].storage_offset()
    for x in parts:
        same = x.untyped_storage().data_ptr() == first.untyped_storage().data_ptr()
        if not same or x.stride() != first.stride() or x.storage_offset() != end:
            return False
        end += x.shape[1] * x.stride(1)
    return True


def alike(past: Tensor, new: Tensor) -> bool:
    """Whether both are plain tensors that differ in their number of tokens alone."""
    plain = type(past) is type(new) is Tensor and past.device == new.device
    same = past.dtype == new.dtype and past.shape[:1] == new.shape[:1]
    return plain and same and past.shape[2:] == new.shape[2:]


def behind(past: Tensor, new: Tensor, most: int | None) -> Tensor:
    """The result of `grown`, in memory with room. A value in such memory knows it, up to where it
    is written, and where the value itself ends."""
    start, count = past.shape[1], new.shape[1]
    memory, written, end = getattr(past, "_room", (None, [0], -1))
    if memory is None or written[0] != end or not has_room(memory, end + count):
        size = max(2 * (start + count), LEAST_ROOM) if most is None else most
        with torch.inference_mode(False):  # torch counts who writes to it
            memory = new.new_empty((new.shape[0], size, *new.shape[2:]))
        memory[:, :start] = past
        written, end = [start], start
    written[0] = end + count
    memory[:, end : end + count] = new
    made = memory[:, end - start : end + count]
    vars(made)["_room"] = (memory, written, end + count)
    return made


def has_room(memory: Tensor, tokens: int) -> bool:
    """Whether so many tokens fit, and may be written here: what was made in inference mode is not
    changed outside it."""
    changeable = torch.is_inference_mode_enabled() or not memory.is_inference()
    return changeable and tokens <= memory.shape[1]


def last_tokens(x: Tensor, count: int) -> Tensor:
    """The last `count` tokens, or all if there are fewer; with the room behind them."""
    start = max(0, x.shape[1] - count)
    if torch.compiler.is_exporting():  # of a slice torch asks whether it is all there is
        return x.index_select(1, torch.arange(start, x.shape[1], device=x.device))
    made = x[:, start:]
    room = None if torch.compiler.is_compiling() else getattr(x, "_room", None)
    if room is not None:
        vars(made)["_room"] = room
    return made


def most_of(x: Tensor) -> int | None:
    """How many tokens a value may become long; None for any number."""
    return None if torch.compiler.is_compiling() else getattr(x, "_most", None)


def with_most(x: Tensor, most: int | None) -> Tensor:
    """A new value, told how long it may become."""
    if most is not None:
        vars(x)["_most"] = most
    return x


def limited(x: Tensor, most: int) -> Tensor:
    """A value that may become so long; ValueError for one that is longer."""
    if x.shape[1] > most:
        raise ValueError(f"the state has {x.shape[1]} tokens: room for {most} is too little")
    return with_most(x[:], most)
