"""Functions around the ops of attentions."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from archc.runtime.kernels import block_of, has_triton, needs_gradient, processors_of
from archc.runtime.layers import once_for
from archc.runtime.ops import transformed
from archc.runtime.optional import triton
from archc.runtime.packed import packed_tables
from archc.runtime.running_kernel import SumsByKernel

SPAN = 256
"""How many tokens of a packed sequence are added up at a time."""


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


def by_few_folds(readers: int, *tensors: Tensor) -> bool:
    """Whether kernels whose rows are the heads of fewer than 16 readers can do it: nothing learns
    by it."""
    return readers < 16 and by_folds(*tensors) and not needs_gradient(*tensors)


class RunningSums(torch.autograd.Function):
    """The sum of the tokens up to each one, [..., S], both ways contiguous; of packed sequences,
    where borders of them are given, within each."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cu_seqlens: Tensor | None) -> Tensor:
        ctx.borders = cu_seqlens
        if cu_seqlens is None:
            return x.contiguous().cumsum(-1)
        return sums_by_spans(x, span_tables(cu_seqlens, x.shape[-1], False))

    @staticmethod
    def backward(ctx: Any, *d: Tensor) -> tuple[Tensor, None]:
        (slope,), borders = d, ctx.borders
        if borders is None:
            return slope.contiguous().flip(-1).cumsum(-1).flip(-1), None
        tables = span_tables(borders, slope.shape[-1], True)
        return sums_by_spans(slope.flip(-1), tables).flip(-1), None


def span_tables(cu_seqlens: Tensor, tokens: int, reverse: bool) -> list[tuple[Tensor, ...]]:
    """The places of the tokens of packed sequences in spans of `SPAN`, of which none has tokens of
    two; then those of the spans in spans of these, until a sequence of any length is one. Of each:
    the token [n, SPAN] at every place, or the one after the last; the place of every token; and 1 +
    the span before each in its sequence, or 0. With `reverse` tokens go backward."""

    def make(cu_seqlens: Tensor) -> list[tuple[Tensor, ...]]:
        borders = (tokens - cu_seqlens.flip(0) if reverse else cu_seqlens).long()
        start, end, made = borders[:-1], borders[1:].contiguous(), []
        count, longest = tokens, tokens
        while not made or longest > 1:
            high = ((end - start + SPAN - 1) // SPAN).cumsum(0)
            low, last = F.pad(high, (1, 0))[:-1], len(start) - 1
            span = torch.arange((count + len(start) * (SPAN - 1)) // SPAN, device=start.device)
            own = torch.searchsorted(high, span, right=True).clamp(max=last)
            first = (start + SPAN * -low)[own] + SPAN * span
            at = first[:, None] + torch.arange(SPAN, device=start.device)
            at = torch.where(at < end[own][:, None], at, count)
            t = torch.arange(count, device=start.device)
            of_token = torch.searchsorted(end, t, right=True).clamp(max=last)
            place = (t - start[of_token] + SPAN * low[of_token]).clamp(max=at.numel() - 1)
            made.append((at, place, torch.where(span > low[own], span, 0)))
            start, end, count, longest = low, high, len(span), -(-longest // SPAN)
        return made

    return once_for(cu_seqlens, ("spans", tokens, reverse), make)


def sums_by_spans(x: Tensor, tables: list[tuple[Tensor, ...]]) -> Tensor:
    """The sum of the tokens up to each one of its sequence, x [..., S]: in spans, and of those
    before. Nothing is subtracted, and nothing of one sequence reaches another."""
    (at, place, before), *rest = tables
    total = F.pad(x, (0, 1))[..., at].cumsum(-1)
    if rest:
        ends = F.pad(sums_by_spans(total[..., -1], rest), (1, 0))
        total = total + ends[..., before, None]
    return total.flatten(-2)[..., place]


def running_sums(x: Tensor, cu_seqlens: Tensor | None = None) -> Tensor:
    """The sum of the tokens up to each one, of its own sequence: [B, S, ...] -> [B, S, ..., 2], a
    number and what it lacks, as differences of large sums may be small. What forgets all does so by
    -1e5 already. The tokens of a head lie side by side in memory."""
    if cu_seqlens is None and x.dim() == 3 and are_launched(x):
        return SumsByKernel.apply(x).movedim(0, -1).movedim(-2, 1)
    total = RunningSums.apply(x.movedim(1, -1).double().clamp(min=-1e5), cu_seqlens)
    high = total.float()
    made = torch.stack((high, (total - high.double()).detach().float()))
    return made.movedim(0, -1).movedim(-2, 1)


def are_launched(x: Tensor) -> bool:
    """Whether a kernel adds up numbers: of a tensor that is there, and not looked at by torch."""
    return type(x) is Tensor and x.numel() > 0 and by_folds(x) and not torch.compiler.is_compiling()


def of_running_sums(d: Tensor) -> Tensor:
    """The gradient of `running_sums`: what a number lacks is a constant."""
    return torch.stack((d, torch.zeros_like(d)), -1)


def of_table(d: Tensor, at: Tensor, length: int) -> Tensor:
    """Sums of what stands at one index of a table, always in one order: d and at
    [B, ..., n, 2, u] -> [..., length]."""
    d, at = d.sum(0).flatten(-3).double(), at[0].flatten(-3).long().clamp(0, length - 1)
    order = at.argsort(dim=-1, stable=True)
    total = F.pad(d.gather(-1, order).cumsum(-1), (1, 0))
    index = torch.arange(length, device=at.device).expand(*at.shape[:-1], length).contiguous()
    last = torch.searchsorted(at.gather(-1, order), index, right=True)
    return total.gather(-1, F.pad(last, (1, 0))).diff(dim=-1)


def of_groups(d: Tensor, place: int, groups: int) -> Tensor:
    """Gradients of heads, those of a group as their sum."""
    if d.shape[place] == groups:
        return d
    return d.unflatten(place, (groups, -1)).sum(place + 1)


def vectors_of(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Vectors in a dtype, each in one piece of memory."""
    x = x.to(dtype)
    return x if x.stride(-1) == 1 else x.contiguous()


def copied_vectors(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Vectors in a dtype as the copy engine reads them: each begins at a multiple of 16 bytes."""
    x = x.to(dtype)
    if x.stride(-1) == 1 and is_copied(x):
        return x
    apart = 16 // x.element_size()
    room = x.new_empty((*x.shape[:-1], -(-x.shape[-1] // apart) * apart))
    return room[..., : x.shape[-1]].copy_(x)


def side_by_side(table: Tensor, dim: int) -> Tensor:
    """A table with a dim's numbers one after the other: pairs of a block read near ones."""
    return table.movedim(dim, -1).contiguous().movedim(-1, dim)


def fold_blocks(program: str, dtype: torch.dtype, *dims: int) -> tuple[int, int, dict]:
    """How many readers and how many tokens read are in a block of an attention's kernel, and how it
    is launched; `dims` are the lengths of its vectors."""
    wide = max(block_of(size) for size in dims)
    if program == "scores" and dtype.itemsize == 2:
        return 64, 128 if wide <= 128 else 64, {"num_warps": 4, "num_stages": 3}
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


def turn_blocks(
    dtype: torch.dtype, readers: int, read: int, groups: int, device: torch.device, *dims: int
) -> tuple[int, int, dict] | None:
    """How many readers and how many tokens read are in a block of a kernel whose heads take turns,
    and how it is launched: where all that so many `groups` of heads `read` stands on chip, and
    there are programs for each processor; else None. `dims` are the lengths of vectors."""
    wide = max(block_of(size) for size in dims)
    if dtype.itemsize != 2 or wide > 128 or read > 128:
        return None
    if groups * -(-readers // 64) < 2 * processors_of(device):
        return None
    return 64, max(16, block_of(read)), {"num_warps": 4, "num_stages": 2}


def part_blocks(
    dtype: torch.dtype, rows: int, programs: int, tokens: int, device: torch.device, *dims: int
) -> tuple[int, int, int, dict]:
    """Of a kernel of few readers: how many rows and how many tokens read are in a block, into how
    many parts the tokens are split, and how it is launched. `rows`: how many there are for each of
    the `programs`; `dims` are the lengths of vectors. There are parts enough for two programs of
    each processor, and none is shorter than 4 blocks. Sums of vectors of more than 256 numbers
    go over 8 warps, which have the registers for 64 rows of 512: that fills a processor."""
    wide, exact = max(block_of(size) for size in dims), dtype.itemsize == 4
    block = block_of(rows, 32 if exact and wide > 256 else 64)
    columns = (16 if wide > 256 else 32) if exact else 32 if 128 < wide <= 256 else 64
    programs = max(1, programs * -(-rows // block))  # none of a sequence without tokens
    places = processors_of(device) * (1 if wide > 256 and block >= 64 else 2)
    parts = min(places // programs, -(-tokens // (4 * columns)), 64)
    stages = 1 if exact and wide > 256 else 2 if exact or wide > 128 else 3
    options = {"num_warps": 8 if wide > 256 else 4, "num_stages": stages}
    return block, columns, max(1, parts), options


def are_turned(rows: int, *read: Tensor) -> bool:
    """Whether a program of so many rows is the one that is turned around, of the vectors that it
    reads: its sums go over 8 warps. It reads by the copy engine, to which tokens are multiples of
    16 bytes apart. It has room for two blocks because its last product is waited for before more is
    loaded, which is known of Triton 3.6 on Hopper, from its machine code
    (`tests/attention/compiled.py`)."""
    wide, device = max(x.shape[-1] for x in read), read[0].device
    if read[0].dtype.itemsize != 2 or rows < 64 or wide <= 256 or device.type != "cuda":
        return False
    hopper = torch.cuda.get_device_capability(device)[0] == 9
    return hopper and triton.__version__.startswith("3.6.") and all(map(is_copied, read))


def is_copied(x: Tensor) -> bool:
    """Whether the copy engine reads vectors: each begins at a multiple of 16 bytes, and none is
    there for several places, as of a tensor that is expanded."""
    steps = [step * x.element_size() for step in x.stride()[:-1]]
    once = all(step or size == 1 for step, size in zip(steps, x.shape, strict=False))
    return once and all(byte % 16 == 0 for byte in (x.data_ptr(), *steps))


COPIED_FROM = 2048
"""Of so many tokens walked descriptors cost no more than they save (ALiBi on an H200)."""


def are_copied(walked: int, *read: Tensor) -> bool:
    """Whether whole blocks of these vectors are read by the copy engine, which Hopper has: those of
    16 bits, and of up to 128 numbers, which other loads take longer for. A program makes its
    descriptors first: that pays where `walked` tokens are many."""
    x = read[0]
    if walked < COPIED_FROM or x.dtype.itemsize != 2 or x.device.type != "cuda":
        return False
    if torch.version.hip is not None:
        return False
    new = torch.cuda.get_device_capability(x.device)[0] >= 9
    return new and all(each.shape[-1] <= 128 and is_copied(each) for each in read)


def turned_around(options: dict) -> dict:
    """How that one is launched: what is read is loaded a whole block ahead."""
    return {**options, "num_stages": options["num_stages"] + 1}


def by_addresses(options: dict) -> dict:
    """How a kernel is launched that loads where to read: Triton shares the stages among what is
    read and its addresses, so that as much is loaded ahead with as many stages for each."""
    return {**options, "num_stages": 2 * options["num_stages"] - 1}


def fold_programs(
    program: str, cu_seqlens: Tensor | None, tokens: int, read: int, rows: int, columns: int
) -> tuple[Tensor | None, int]:
    """How many programs of an attention's kernel there are along the tokens; and of packed
    sequences, whose tokens read one another, what each is told: a row [3], where its sequence
    begins and ends, and the place in it that the program stands at.

    There are as many as such sequences can need: nothing waits for the device. Those that they do
    not need stand in a sequence of no tokens. What has most to walk comes first.
    """
    if cu_seqlens is None:
        readers, others = -(-tokens // rows), -(-read // columns)
        return None, {"tokens": others, "tables": readers + others - 1}.get(program, readers)
    block, kind = (columns if program == "tokens" else rows), program.replace("forward", "readers")

    def make(cu_seqlens: Tensor) -> Tensor:
        chunks, _ = packed_tables(cu_seqlens, tokens, block)
        start, end = chunks[:, 2], chunks[:, 3]
        place = chunks[:, 1] + block * torch.arange(len(chunks), device=start.device) - start
        table = torch.stack([start, end, place], 1)
        table = torch.where(chunks[:, :1] < 0, 0, table)
        if program == "tables":
            return by_diagonals(table, block).int()
        start, end, place = table.unbind(1)
        walked = end - start - place if program == "tokens" else place
        return table[walked.argsort(descending=True, stable=True)].int()

    table = once_for(cu_seqlens, (f"blocks of {kind}", tokens, block), make)
    return table, len(table)


def by_diagonals(table: Tensor, block: int) -> Tensor:
    """The diagonals of square blocks of pairs, from the blocks [n, 3] of each sequence: one for
    each block that it is ahead, and one for each that it is behind; [2 n, 3]."""
    start, end, place = table.unbind(1)
    beside = place // block
    behind = torch.stack([start, end, -beside], 1)
    behind = torch.where(place[:, None] > 0, behind, 0)
    return torch.cat([torch.stack([start, end, beside], 1), behind])


def no_second_gradient_of_fold(ctx: Any, *given: Tensor) -> None:
    """The gradient of a gradient: refused."""
    raise RuntimeError(
        "kernels of an attention have a gradient, but no gradient of that gradient: on a CPU, or "
        "where fewer than 16 tokens read, PyTorch does it and has one"
    )
