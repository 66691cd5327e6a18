"""Lists of what readers have chosen, for kernels that walk them."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from archc.runtime.kernels import block_of, processors_of
from archc.runtime.layers import top_of
from archc.runtime.ops import transformed
from archc.runtime.packed import bounds_of, places_in_each

PAIRS = 1 << 26
"""So many numbers of pairs of tokens are in memory at once."""

ENTRIES = 1 << 29
"""So many numbers of entries of a gradient are in memory at once."""


def readers_at_once(numbers: int, most: int = ENTRIES) -> int:
    """Of how many readers something is in memory at once, where one has so many numbers of it."""
    return max(1, most // max(1, numbers))


def places_of(chosen: Tensor, most: int) -> Tensor:
    """The places along the last dim that hold, in order, and -1 behind them: [..., N] ->
    [..., most]. There are at most so many."""
    place = chosen.cumsum(-1, dtype=torch.int32)
    at = torch.where(chosen, place - 1, most).clamp(max=most).long()
    places = torch.arange(chosen.shape[-1], device=chosen.device, dtype=torch.int32)
    room = torch.full((), -1, dtype=torch.int32, device=chosen.device)
    made = room.expand(*chosen.shape[:-1], most + 1).scatter(-1, at, places.expand(at.shape))
    return made[..., :most].contiguous()


def at_places(listed: Tensor, length: int, dim: int, first: int = 0) -> Tensor:
    """Whether each place of a dim is in a list along it, what `places_of` was made of; of the
    places from the `first` on, before which none is listed."""
    listed = listed.movedim(dim, -1)
    at = torch.where(listed < 0, length, listed - first).long()
    room = torch.zeros((), dtype=torch.bool, device=listed.device)
    made = room.expand(*listed.shape[:-1], length + 1).scatter(-1, at, True)
    return made[..., :length].movedim(-1, dim)


def largest_places(score: Tensor, most: int) -> Tensor:
    """The places of the `most` largest along the last dim, in order and -1 behind them; of equals
    the first, never of -inf: [..., N] -> [..., most]."""
    return places_of(top_of(score, most, -1), most)


SHORT_ROW = 1024
"""Rows of so many numbers fit in a block of a kernel that lists their largest."""


def place_blocks(length: int, most: int) -> tuple[int, int, int]:
    """Of kernels that list the `most` largest of rows of a length: into how many parts a row goes,
    for how many numbers there is room that may be among them, and how many of these are in a block.
    There are twice as many parts as are listed, so that few more reach the least of their largest.
    """
    parts = min(block_of(length), max(1024, block_of(2 * most, 16384)))
    return parts, 2 * parts, min(parts, 1024)


def place_options(block: int) -> dict:
    """How these are launched, with so many numbers in a block."""
    return {"num_warps": min(16, max(1, block // 256)), "num_stages": 2}


def bits_of(dtype: torch.dtype) -> int:
    """How many of the upper 31 bits of a number's order, in float32, tell numbers of a dtype from
    one another."""
    return {torch.bfloat16: 15, torch.float16: 18}.get(dtype, 31)


def chosen_by_readers(
    choose: Callable[..., Tensor], readers: tuple[Tensor, ...], read: tuple[Tensor, ...], pos: int,
    numbers: int, most: int, dim: int, largest: Callable[..., Tensor] = largest_places,
    cu_seqlens: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """The places along a dim that readers choose, those of their `most` largest scores, as
    `largest` lists them; of packed sequences, whose borders are given, none of another one.

    `choose` makes the scores of some readers: of values [B, T, ...] of these, values [B, S, ...] of
    the tokens up to the last of them, and the position of the first. So many readers are taken at
    once that there is room for the `numbers` that are made of one of them.
    """
    T, made = readers[0].shape[1], []
    with torch.no_grad():
        for first, last, low in reader_spans(readers[0], numbers, cu_seqlens, PAIRS // 4):
            own = [x[:, first:last] for x in readers]
            seen = [x[:, low : x.shape[1] - T + last] for x in read]
            score = choose(*own, *seen, pos + first).movedim(dim, -1)
            if cu_seqlens is not None:
                score = within_sequences(score, cu_seqlens, first, low)
            places = largest(score, most)
            places = places if low == 0 else torch.where(places < 0, places, places + low)
            made.append(places.movedim(-1, dim))
    return made[0] if len(made) == 1 else torch.cat(made, 1)


def reader_spans(
    x: Tensor, numbers: int, cu_seqlens: Tensor | None, joined: int = 0
) -> list[tuple[int, int, int]]:
    """Readers x [B, T, ...] that are taken at once, where so many numbers are made of one: the
    first, the one behind the last, and the first token that they may read. Packed sequences of
    which not more than so many numbers are made may be `joined`."""
    T = x.shape[1]
    if cu_seqlens is not None:
        return packed_spans(bounds_of(cu_seqlens, x), max(1, numbers // max(T, 1)), joined)
    step = readers_at_once(numbers, PAIRS)
    return [(first, min(first + step, T), 0) for first in range(0, max(T, 1), step)]


def packed_spans(bounds: list[int], numbers: int, joined: int) -> list[tuple[int, int, int]]:
    """The same of packed sequences, where so many `numbers` are made of a pair: of a long one some
    readers at a time."""
    spans, first = [], 0
    for start, end in pairwise(bounds):
        long = (end - start) ** 2 * numbers > PAIRS
        if first < start and (long or (end - first) ** 2 * numbers > joined):
            spans.append((first, start, first))
            first = start
        if long:
            step = readers_at_once((end - start) * numbers, PAIRS)
            spans += [(t, min(t + step, end), start) for t in range(start, end, step)]
            first = end
    if first < bounds[-1] or not spans:
        spans.append((first, bounds[-1], first))
    return spans


def within_sequences(score: Tensor, cu_seqlens: Tensor, first: int, low: int) -> Tensor:
    """Scores [1, T, ..., S] of readers from the token `first` on and of tokens read from `low` on,
    -inf where these are of another sequence."""
    readers = first + torch.arange(score.shape[1], device=score.device)
    begin = readers - places_in_each(cu_seqlens, readers)
    read = low + torch.arange(score.shape[-1], device=score.device)
    other = read < begin.reshape(-1, *[1] * (score.dim() - 2))
    return score.masked_fill_(other, -torch.inf)


def of_some_readers(
    run: Callable[..., Any], readers: tuple[Tensor, ...], read: tuple[Tensor, ...], pos: int,
    numbers: int, cu_seqlens: Tensor | None = None,
) -> Any:  # fmt: skip
    """What `run` makes of readers [B, T, ...], of some of them at a time, as `chosen_by_readers`
    does: a tensor, or several. Where it learns, all is made again for the gradient."""
    from torch.utils.checkpoint import checkpoint

    T, made = readers[0].shape[1], []
    spans = reader_spans(readers[0], numbers, cu_seqlens)
    if len(spans) == 1 or transformed(*readers, *read):  # of all readers
        return run(*readers, *read, pos)
    for first, last, low in spans:
        own = [x[:, first:last] for x in readers]
        given = [*own, *(x[:, low : x.shape[1] - T + last] for x in read), pos + first]
        learns = torch.is_grad_enabled()
        made.append(checkpoint(run, *given, use_reentrant=False) if learns else run(*given))
    if isinstance(made[0], Tensor):
        return torch.cat(made, 1)
    return tuple(torch.cat(each, 1) for each in zip(*made, strict=True))


def listed_along(chosen: Tensor, most: int, dim: int) -> Tensor:
    """`places_of` along any dim."""
    return places_of(chosen.movedim(dim, -1), most).movedim(-1, dim)


def filled(listed: Tensor) -> tuple[Tensor, Tensor]:
    """Lists as kernels take them: places [..., most], and how many of them are filled [...]."""
    return listed.contiguous(), (listed >= 0).sum(-1, dtype=torch.int32)


def readers_of(listed: Tensor, count: Tensor, blocks: int) -> tuple[Tensor, Tensor]:
    """For each block the readers that have chosen it, in order, and where these begin and end:
    [B, T, ..., most] and [B, T, ...] -> [B, ..., T most] and [B, ..., blocks + 1]."""
    order, begins = _by_place(listed, count, blocks)
    return (order // listed.shape[-1]).to(torch.int32), begins


def entries_of(listed: Tensor, count: Tensor, tokens: int, heads: int) -> tuple[Tensor, Tensor]:
    """For each token its entries in lists, in order, and where these begin and end, of so many
    heads, which may share lists: [B, T, ..., most] and [B, T, ...] -> [B, heads, T most] and
    [B, heads, tokens + 1]. An entry is reader * most + place."""
    order, begins = _by_place(listed, count, tokens)
    B = listed.shape[0]
    order, begins = (x.reshape(B, -1, x.shape[-1]).expand(B, heads, -1) for x in (order, begins))
    return order.to(torch.int32).contiguous(), begins.contiguous()


def _by_place(listed: Tensor, count: Tensor, places: int) -> tuple[Tensor, Tensor]:
    """The entries of lists [B, T, ..., most] by the place that they list: their positions, [B, ...,
    T most], in order, and where each place begins and ends there, [B, ..., places + 1]."""
    there = torch.arange(listed.shape[-1], device=listed.device) < count[..., None]
    place = torch.where(there, listed, places).movedim(1, -2).flatten(-2)
    ordered, order = place.sort(dim=-1, stable=True)
    begin = torch.arange(places + 1, device=listed.device, dtype=listed.dtype)
    begin = begin.expand(*place.shape[:-1], places + 1).contiguous()
    begins = torch.searchsorted(ordered.contiguous(), begin, out_int32=True)
    return order.contiguous(), begins.contiguous()


def readers_beside(tokens: int, heads: int) -> int:
    """How many readers, one beside the other, a program of chosen blocks has, of so many heads
    each: so many that a product has enough rows, of which none is loaded twice."""
    return max(1, min(tokens, max(16 // heads, min(4, 64 // heads))))


def union_options(entries: int) -> dict:
    """How the kernel is launched that unites lists of so many entries."""
    return {"num_warps": min(8, max(1, block_of(entries) // 64)), "num_stages": 1}


def choice_blocks(
    program: str, dtype: torch.dtype, heads: int, size: int, *dims: int
) -> tuple[int, int, dict]:
    """How many rows and how many tokens read are in a block of a kernel of chosen blocks of a size,
    1 for single tokens, and how it is launched. Of readers, rows are the heads of all that are in
    a program; `dims` are the lengths of vectors."""
    wide = max(block_of(each) for each in dims)
    small = dtype.itemsize == 4 or wide > 128
    if size == 1:
        return single_blocks(program, dtype.itemsize == 4, heads, wide)
    columns = block_of(size, 32 if small else 64)
    if program == "tokens":
        return 32, columns, {"num_warps": 8 if small else 4, "num_stages": 1 if small else 2}
    rows = block_of(heads, 128)
    if rows == 64 and not small:  # measured on an H200
        most = 32 if program == "forward" else 64
        return rows, block_of(size, most), {"num_warps": 4, "num_stages": 2}
    few = 2 if program == "readers" and rows == 16 else 4
    warps = 8 if rows > 64 else few
    return rows, columns, {"num_warps": warps, "num_stages": 1 if small else 2}


def single_blocks(program: str, exact: bool, heads: int, wide: int) -> tuple[int, int, dict]:
    """The same of single tokens; vectors have at most `wide` numbers, of 4 bytes if `exact`."""
    far = wide > 256
    rows = block_of(heads, 16 if exact and far else 32 if exact or program != "forward" else 64)
    if far and not exact and rows == 16 and program != "forward":  # measured on an H200
        return rows, 32, {"num_warps": 8, "num_stages": 2}
    columns = 16 if exact and far else 32 if exact or far else 64
    stages = 1 if exact or (far and program != "forward") else 2
    many = far and (rows > 16 or (exact and program != "forward"))
    return rows, columns, {"num_warps": 8 if many else 4, "num_stages": stages}


def entry_precision(dtype: torch.dtype, *dims: int) -> str:
    """The precision of products in a gradient of single tokens, of vectors of some lengths: the
    parts of long ones in float32 would need more than there is on chip."""
    return "ieee" if dtype.itemsize == 4 and max(dims) > 256 else "tf32x3"


def choice_parts(programs: int, device: torch.device) -> int:
    """In how many parts the readers of a block are walked: some blocks have many more of them than
    others."""
    return min(8, max(4, 8 * processors_of(device) // programs))
