"""Products of tokens with the matrices of the places that each has chosen."""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from archc.runtime.layers import take_at, told_by
from archc.runtime.ops import transformed

ALIGNED = 16
"""Bytes that a row of a matrix must be a multiple of, for a grouped product of torch."""

BLOCK = 64
"""Pairs of a block where their number may be any."""


class Routed(NamedTuple):
    """Pairs of a token and a place that it has chosen, sorted by place: `choice` [tokens, k] are
    the places of each token, `places` those of the sorted pairs, `order` where each pair comes
    from, `back` where it goes, and `ends` where the pairs of each place end. `tokens` is the shape
    of what chooses."""

    choice: Tensor
    places: Tensor
    order: Tensor
    back: Tensor
    ends: Tensor
    tokens: Any


def routed_by(chosen: Tensor, count: int) -> Routed:
    """The pairs of a choice [..., N], of which `count` are true, or fewer: others then stand in for
    these, lowest first, whose weights are 0."""
    flat = chosen.flatten(0, -2)
    choice = (~flat).to(torch.uint8).argsort(dim=-1, stable=True)[:, :count]
    places, order = choice.flatten().sort(stable=True)
    every = torch.arange(chosen.shape[-1], device=chosen.device)
    ends = torch.searchsorted(places, every, right=True).to(torch.int32)
    back = torch.zeros_like(order).scatter(0, order, torch.arange(len(order), device=order.device))
    return Routed(choice, places, order, back, ends, chosen.shape[:-1])


def for_pairs(x: Tensor, order: Tensor, count: int) -> Tensor:
    """Values of tokens [tokens, *rest] for each pair."""
    return x.index_select(0, order // count)


def for_tokens(x: Tensor, back: Tensor, count: int) -> Tensor:
    """Values of pairs [pairs, *rest], summed over the `count` places of each token."""
    return x.index_select(0, back).unflatten(0, (x.shape[0] // count, count)).sum(1)


class _Looked(torch.autograd.Function):
    """`for_pairs`, or `for_tokens` where not `pairs`: each is the gradient of the other, so that
    nothing is added where others add."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, order: Tensor, back: Tensor, count: int, pairs: bool
    ) -> Tensor:
        ctx.save_for_backward(order, back)
        ctx.rest = count, not pairs
        return for_pairs(x, order, count) if pairs else for_tokens(x, back, count)

    @staticmethod
    def backward(ctx: Any, *arriving: Tensor) -> Any:
        slope = _Looked.apply(arriving[0], *ctx.saved_tensors, *ctx.rest)
        return slope, None, None, None, None


def routed_tokens(x: Tensor, routed: Routed) -> Tensor:
    """Values of tokens [..., *rest] for each pair, [pairs, *rest]."""
    flat, count = x.flatten(0, len(routed.tokens) - 1), routed.choice.shape[1]
    if transformed(flat, routed.order):
        return for_pairs(flat, routed.order, count)
    return _Looked.apply(flat, routed.order, routed.back, count, True)


def routed_pairs(x: Tensor, routed: Routed) -> Tensor:
    """Values of tokens and places [..., N, *rest] for each pair."""
    rest = x.shape[len(routed.tokens) + 1 :]
    tokens, count = routed.choice.shape
    every = take_at(x.flatten(0, len(routed.tokens) - 1), routed.choice, 1)
    return every.reshape(tokens * count, *rest).index_select(0, routed.order)


def routed_places(x: Tensor, routed: Routed) -> Tensor:
    """Values of places alone [N, *rest] for each pair."""
    rows = F.embedding(routed.places, x.reshape(x.shape[0], math.prod(x.shape[1:])))
    return rows.reshape(rows.shape[0], *x.shape[1:])


def summed_pairs(x: Tensor, routed: Routed) -> Tensor:
    """Values of pairs [pairs, *rest], summed over the places of each token: [..., *rest]."""
    count = routed.choice.shape[1]
    if transformed(x, routed.back):
        total = for_tokens(x, routed.back, count)
    else:
        total = _Looked.apply(x, routed.order, routed.back, count, False)
    return total.reshape(*routed.tokens, *x.shape[1:])


def grouped_product(x: Tensor, weight: Tensor, routed: Routed) -> Tensor:
    """Each pair by the matrix of its place: x [pairs, I], weight [N, I, O] -> [pairs, O].

    One grouped product of torch where the device has it, for which nothing waits; else a product
    for each place that was chosen, and where torch traces or a CUDA graph is recorded, which cannot
    look at how many chose it, products of blocks of pairs.
    """
    if torch.is_autocast_enabled(x.device.type):
        dtype = torch.get_autocast_dtype(x.device.type)
        x, weight = x.to(dtype), weight.to(dtype)
    if transformed(x, weight, routed.places):
        return product_of_blocks(x, weight, routed)
    if groups(x, weight):
        return F.grouped_mm(x, weight, offs=routed.ends)
    recorded = x.is_cuda and torch.cuda.is_current_stream_capturing()
    if recorded or torch.compiler.is_compiling():
        return product_of_blocks(x, weight, routed)
    made, start = [], 0
    matrices = weight.unbind(0)
    for place, end in enumerate(routed.ends.tolist()):
        if end > start:
            made.append(x[start:end] @ matrices[place])
        start = end
    return torch.cat(made) if made else x @ matrices[0]


def groups(x: Tensor, weight: Tensor) -> bool:
    """Whether torch has one product for all groups here, on the device itself: of bfloat16, since
    Hopper."""
    if x.device.type != "cuda" or not x.dtype == weight.dtype == torch.bfloat16:
        return False
    whole = all(n * x.element_size() % ALIGNED == 0 for n in weight.shape[1:])
    known = hasattr(F, "grouped_mm") and torch.cuda.get_device_capability(x.device) >= (9, 0)
    return known and whole


def product_of_blocks(x: Tensor, weight: Tensor, routed: Routed) -> Tensor:
    """The result of `grouped_product`, in shapes that no choice changes: pairs of a place fill
    blocks of as many rows as a place has pairs on average, with zeros behind its last ones; of
    `BLOCK` where torch wants any number of pairs."""
    pairs, places = x.shape[0], weight.shape[0]
    known = isinstance(pairs, int)
    size = max(1, pairs // places) if known else BLOCK
    most = pairs // size + (min(pairs, places) if known else places)
    ends = routed.ends.long()
    counts = ends.diff(prepend=torch.zeros_like(ends[:1]))
    last = ((counts + size - 1) // size).cumsum(0)
    first = last - (counts + size - 1) // size
    inside = torch.arange(pairs, device=x.device) - (ends - counts)[routed.places]
    at = (first[routed.places] + inside // size, inside % size)
    blocks = x.new_zeros(most, size, x.shape[1]).index_put(at, x)
    owner = torch.searchsorted(last, torch.arange(most, device=x.device), right=True)
    matrices = F.embedding(owner.clamp(max=places - 1), weight.flatten(1))
    return (blocks @ matrices.unflatten(1, weight.shape[1:]))[at]


SPARED = {True: 3_200, False: 16_000}
"""From how many pairs of a token and a memory that it has not chosen on a GPU is faster where it
does not walk them, with gradients and without: on an H100, 16 heads of 128."""


def memories_pay(chosen: Tensor, count: int, cu_seqlens: Tensor | None) -> bool:
    """Whether memories of which each token [B, T, N] moves `count` are better off as sequences of
    their own tokens: if these are as many as a chunk on average, and fewer than all; on a GPU, if
    so many are spared that more launches are made up for. Not where torch traces, which wants one
    way."""
    tokens, places = chosen.shape[0] * chosen.shape[1], chosen.shape[2]
    sequences = chosen.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1
    if torch.compiler.is_compiling() or transformed(chosen):
        return False
    if chosen.is_cuda and tokens * (places - count) < SPARED[torch.is_grad_enabled()]:
        return False
    return count < places and 0 < BLOCK * places * sequences <= tokens * count


def place_borders(routed: Routed, cu_seqlens: Tensor | None) -> Tensor:
    """The borders of the pairs of each place and sequence, those of a place one sequence after the
    other: [places * sequences + 1], made on the device."""
    tokens, count = routed.choice.shape
    token = routed.order // count
    if cu_seqlens is None:
        sequences = routed.tokens[0]
        owner = token // (tokens // sequences)
    else:
        sequences = cu_seqlens.shape[0] - 1
        owner = torch.searchsorted(cu_seqlens[1:].to(token.dtype), token, right=True)
    every = torch.arange(routed.ends.shape[0] * sequences + 1, device=token.device)
    borders = torch.searchsorted(routed.places * sequences + owner, every)
    if not borders.is_inference():  # they are right: nothing waits to look at them
        vars(borders)["_checked"] = (told_by(borders), tokens * count)
    return borders


def by_place(state: Tensor, at: int) -> Tensor:
    """States with a row for each sequence, and places along dim `at`, as states of one place with a
    row for each place and sequence."""
    return state.movedim(at, 0).flatten(0, 1)


def by_sequence(state: Tensor, routed: Routed, at: int) -> Tensor:
    """The inverse of `by_place`."""
    return state.unflatten(0, (routed.ends.shape[0], -1)).movedim(0, at)
