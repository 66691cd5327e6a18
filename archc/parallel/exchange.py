"""Exchanges between processes, with gradients.

Each function of autograd here does one collective forward and one backward. All processes must come
to the same collectives in the same order, backward too: so a value that not every process reads is
exchanged together with an anchor that each of them does read (`gathered`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from archc.parallel.mesh import Ranks


class _Gather(torch.autograd.Function):
    """The anchor as it came, and the parts, of some sizes, of a flat value of every process, in the
    order of their ranks."""

    @staticmethod
    def forward(
        ctx: Any, ranks: Ranks, what: str, sizes: list[int], anchor: Tensor, flat: Tensor
    ) -> Any:
        ctx.ranks, ctx.what = ranks, what
        every = flat.new_empty(ranks.count * flat.numel())
        ranks.ask(what, lambda: dist.all_gather_into_tensor(every, flat, group=ranks.group))
        return anchor.view_as(anchor), *every.split(sizes * ranks.count)

    @staticmethod
    def backward(ctx: Any, *arriving: Tensor) -> Any:
        d_anchor, *d_parts = arriving
        ranks, what = ctx.ranks, f"the gradient of {ctx.what}"
        every = torch.cat(d_parts)
        own = every.new_empty(len(every) // ranks.count)
        ranks.ask(what, lambda: dist.reduce_scatter_tensor(own, every, group=ranks.group))
        return None, None, None, d_anchor, own


def gathered(
    ranks: Ranks, what: str, anchor: Tensor, values: Sequence[Tensor]
) -> tuple[Tensor, list[tuple[Tensor, ...]]]:
    """The values of every process, by rank, and the anchor, which must be used in place of what it
    was: its gradient is what brings every process to the collective of the backward. Shapes are the
    same on all of them."""
    found: list[list[Tensor]] = [[*values] for _ in range(ranks.count)]
    for places in alike(values):
        flat, sizes = flattened([values[i] for i in places]), [values[i].numel() for i in places]
        if flat.is_floating_point():
            anchor, *parts = _Gather.apply(ranks, what, sizes, anchor, flat)
        else:
            parts = [part for row in told(ranks, what, flat) for part in row.split(sizes)]
        for n, part in enumerate(parts):
            i = places[n % len(places)]
            own = part.to(values[i].dtype).view(values[i].shape)
            found[n // len(places)][i] = own
    return anchor, [tuple(own) for own in found]


def alike(values: Sequence[Tensor]) -> list[list[int]]:
    """The places of real numbers, and of whole ones: those of a kind are exchanged together."""
    real = [i for i, x in enumerate(values) if x.is_floating_point()]
    return [each for each in (real, [i for i in range(len(values)) if i not in real]) if each]


class _Flattened(torch.autograd.Function):
    """Values one after the other, each copied once, from where it lies."""

    @staticmethod
    def forward(ctx: Any, dtype: torch.dtype, *values: Tensor) -> Tensor:
        ctx.shapes = [each.shape for each in values]
        sizes = [each.numel() for each in values]
        flat = values[0].new_empty(sum(sizes), dtype=dtype)
        for part, each in zip(flat.split(sizes), values, strict=True):
            part.view(each.shape).copy_(each)
        return flat

    @staticmethod
    def backward(ctx: Any, *arriving: Tensor) -> Any:
        parts = arriving[0].split([shape.numel() for shape in ctx.shapes])
        return None, *(x.view(shape) for x, shape in zip(parts, ctx.shapes, strict=True))


def flattened(values: Sequence[Tensor]) -> Tensor:
    """Values of one kind, one after the other, in a dtype for all; one alone that lies so is not
    copied."""
    dtype = values[0].dtype
    for each in values[1:]:
        dtype = torch.promote_types(dtype, each.dtype)
    if len(values) == 1 and values[0].is_contiguous():
        return values[0].flatten()
    return _Flattened.apply(dtype, *values)


def told(ranks: Ranks, what: str, x: Tensor) -> list[Tensor]:
    """A value of every process, by rank, without gradients."""
    own = x.contiguous()
    every = own.new_empty(ranks.count, *own.shape)
    ranks.ask(
        what, lambda: dist.all_gather_into_tensor(every.flatten(), own.flatten(), group=ranks.group)
    )
    return [*every]


class _Reduce(torch.autograd.Function):
    """The sum over the processes; `alike`: what is done with it is the same on all of them, so that
    its gradient is there already, else their gradients are summed."""

    @staticmethod
    def forward(ctx: Any, ranks: Ranks, what: str, alike: bool, x: Tensor) -> Tensor:
        ctx.ranks, ctx.what, ctx.alike = ranks, what, alike
        total = x.clone(memory_format=torch.contiguous_format)
        ranks.ask(what, lambda: dist.all_reduce(total, group=ranks.group))
        return total

    @staticmethod
    def backward(ctx: Any, *arriving: Tensor) -> Any:
        (d,) = arriving
        if not ctx.alike:
            d = d.clone(memory_format=torch.contiguous_format)
            what = f"the gradient of {ctx.what}"
            ctx.ranks.ask(what, lambda: dist.all_reduce(d, group=ctx.ranks.group))
        return None, None, None, d


def summed(ranks: Ranks, what: str, x: Tensor, alike: bool) -> Tensor:
    """The sum of a value over the processes."""
    return _Reduce.apply(ranks, what, alike, x)


class _Share(torch.autograd.Function):
    """Values that are the same on all processes, of which each computes something else: their
    gradients are summed, in one collective for each dtype."""

    @staticmethod
    def forward(ctx: Any, ranks: Ranks, what: str, *values: Tensor) -> Any:
        ctx.ranks, ctx.what = ranks, what
        return tuple(each.view_as(each) for each in values)

    @staticmethod
    def backward(ctx: Any, *arriving: Tensor) -> Any:
        found = list(arriving)
        for dtype in dict.fromkeys(each.dtype for each in arriving):
            places = [i for i, each in enumerate(arriving) if each.dtype == dtype]
            flat = torch.cat([arriving[i].flatten() for i in places])
            what = f"the gradient of {ctx.what}"
            ctx.ranks.ask(what, lambda flat=flat: dist.all_reduce(flat, group=ctx.ranks.group))
            parts = flat.split([arriving[i].numel() for i in places])
            for i, part in zip(places, parts, strict=True):
                found[i] = part.view(arriving[i].shape)
        return None, None, *found


def shared(ranks: Ranks, what: str, values: Sequence[Tensor]) -> list[Tensor]:
    """The values, whose gradients are summed over the processes."""
    learning = [i for i, each in enumerate(values) if each.requires_grad]
    found = list(values)
    if learning and torch.is_grad_enabled():
        made = _Share.apply(ranks, what, *(values[i] for i in learning))
        for i, each in zip(learning, made, strict=True):
            found[i] = each
    return found


class _Whole(torch.autograd.Function):
    """The parts of all processes along a dim, one after the other."""

    @staticmethod
    def forward(ctx: Any, ranks: Ranks, what: str, dim: int, x: Tensor) -> Tensor:
        ctx.ranks, ctx.dim = ranks, dim
        part = x.movedim(dim, 0).contiguous()
        every = part.new_empty(ranks.count * part.shape[0], *part.shape[1:])
        ranks.ask(what, lambda: dist.all_gather_into_tensor(every, part, group=ranks.group))
        return every.movedim(0, dim)

    @staticmethod
    def backward(ctx: Any, *arriving: Tensor) -> Any:
        return None, None, None, own_part(ctx.ranks, arriving[0], ctx.dim)


def whole(ranks: Ranks, what: str, x: Tensor, dim: int) -> Tensor:
    """A value from the parts that the processes have of it, each of which does the same with it."""
    return _Whole.apply(ranks, what, dim, x)


def own_part(ranks: Ranks, x: Tensor, dim: int) -> Tensor:
    """This process's part of a value along a dim, which the number of processes divides."""
    length = x.shape[dim] // ranks.count
    return x.narrow(dim, ranks.rank * length, length)


class _OneLoss(torch.autograd.Function):
    """A value that is the same on all processes: each has its share of the gradient."""

    @staticmethod
    def forward(ctx: Any, count: int, x: Tensor) -> Tensor:
        ctx.count = count
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *arriving: Tensor) -> Any:
        return None, arriving[0] / ctx.count


def one_loss(ranks: Ranks, x: Tensor) -> Tensor:
    """A value that every process has and differentiates: together they do so once."""
    return _OneLoss.apply(ranks.count, x)


def checked_length(what: str, length: int, count: int, dim: str) -> int:
    """The length of a part. Raises ValueError where the number of processes does not divide it."""
    if length % count:
        near = count * math.ceil(length / count)
        raise ValueError(
            f"{what} = {length} cannot be split over {count} ranks along `{dim}`: "
            f"{length} / {count} is not whole; {near} would do"
        )
    return length // count


def check_same_length(ranks: Ranks, name: str, length: int, device: torch.device) -> None:
    """Refuse parts of a sequence that are not equally long: where each begins is counted from that.
    Raises ValueError; on a GPU, which is not waited for, the device stops."""
    own = torch.full((1,), length, device=device)  # a tensor of a list would wait for the device
    every = own.new_empty(ranks.count)
    what = f"how many tokens each has, for {name}"
    ranks.ask(what, lambda: dist.all_gather_into_tensor(every, own, group=ranks.group))
    told = f"{name}: the ranks along `{ranks.dim}` have parts of the sequence that differ in length"
    if every.is_cuda:
        torch.ops.aten._assert_async.msg((every == length).all(), told)
    elif not bool((every == length).all()):
        lengths = ", ".join(map(str, every.tolist()))
        raise ValueError(f"{told}: {lengths} tokens; `archc.parallel.split` makes equal ones")
