"""Sequences of different lengths in one batch, of each of which a call reads one token: what is
kept of each has room for all that it may become, in a slot of its own."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from archc.runtime.layers import softmax_attention
from archc.runtime.listings import places_of
from archc.runtime.paged import Pages


def check_one_token(layer: str, x: Tensor) -> None:
    """Refuse more than one token of each sequence."""
    if x.shape[1] != 1:
        what = "one token of each sequence is read at a time in slots"
        raise ValueError(f"{layer}: {what}, got {x.shape[1]}")


def own_positions(pos: Tensor, tokens: int) -> Tensor:
    """The positions of the next tokens of sequences that have seen pos [B] tokens: [B, T]."""
    return pos[:, None] + torch.arange(tokens, device=pos.device)


def positions_of_cache(pos: Tensor, places: int) -> Tensor:
    """The position of the token at each place of a cache that holds all of them, [1, S]: behind the
    last of a sequence they are later ones, which no token reads."""
    return torch.arange(places, device=pos.device)[None]


def positions_of_ring(pos: Tensor, places: int) -> Tensor:
    """The position of the token at each place of a cache that holds the latest ones in turn, where
    the last was written at pos [B]: [B, S]. Where there is none yet it is a later one."""
    place = torch.arange(places, device=pos.device)
    found = pos[:, None] - (pos[:, None] - place) % places
    return torch.where(found < 0, pos[:, None] + 1, found)


def kept_in_slots(cache: Any, new: Tensor, pos: Tensor, ring: bool = False) -> Any:
    """The cache [B, S, ...], which may be in pages, with a token new [B, 1, ...] of each sequence
    at its place pos [B], written where it stands; with `ring` in the place of the oldest once it is
    full.

    A cache that is full is refused: on a GPU, where nothing is waited for, by torch as an index
    that is out of bounds.
    """
    if pos.device.type == "cpu" and bool((pos < 0).any()):
        raise ValueError(f"`pos` is the number of tokens seen, got {pos.tolist()}")
    if not ring and pos.device.type == "cpu" and bool((pos >= cache.shape[1]).any()):
        row = int((pos >= cache.shape[1]).int().argmax())
        raise ValueError(f"the cache of sequence {row} is full: it has {cache.shape[1]} tokens")
    if isinstance(cache, Pages):
        cache.keep(new, pos)
        return cache
    place = pos % cache.shape[1] if ring else pos
    cache[torch.arange(len(pos), device=pos.device), place] = new[:, 0].to(cache.dtype)
    return cache


def next_block(x: Tensor, past: Tensor) -> tuple[Tensor, Tensor]:
    """The tokens x [B, 1, ...] and past [B, width - 1, ...] of each sequence, which are a block
    where one is complete, [B, 1, width, ...], and the last tokens for the next ones."""
    block = torch.cat([past, x], 1)
    return block[:, None], block[:, 1:]


def block_kept_in_slots(cache: Any, new: Tensor, pos: Tensor, width: int, stride: int) -> Any:
    """The cache [B, N, ...] of blocks of `width` tokens, one every `stride`, which may be in pages,
    with the block new [B, 1, ...] of each sequence that is complete with the token at pos [B]."""
    done = torch.div(pos + 1 - width, stride, rounding_mode="floor")
    whole = (pos + 1 >= width) & ((pos + 1 - width) % stride == 0)
    place = done.clamp(0, max(cache.shape[1] - 1, 0))
    if cache.shape[1]:
        old = kept_at(cache, place)
        new = torch.where(whole.reshape(-1, *[1] * (new.dim() - 1)), new.to(old.dtype), old)
        kept_in_slots(cache, new, place)
    return cache


def kept_at(cache: Any, pos: Tensor) -> Tensor:
    """What a cache, which may be in pages, has of each sequence at its place pos [B], a token."""
    if isinstance(cache, Pages):
        return cache.at(pos)
    return cache[torch.arange(len(pos), device=pos.device), pos][:, None]


def taken_in_slots(chosen: Tensor, most: int, size: int, pos: Tensor, *caches: Any) -> tuple:
    """Out of caches [B, S, ...], or [B, S, G, ...], which may be in pages, what a token of each
    sequence at pos [B] has chosen: chosen [B, 1, N] or [B, 1, N, G] of blocks of `size` tokens, at
    most so many of them.

    Blocks stand in order and that of pos last, whether it is chosen or not: there are `most` + 1,
    or N + 1 if these are fewer. Returns where the token is among their tokens, [B], which of the
    blocks are chosen, and what the caches have.
    """
    given = chosen[..., None] if chosen.dim() == 3 else chosen
    now = (pos // size)[:, None, None]  # [B, 1, 1]
    by_heads = given[:, 0].transpose(1, 2)  # [B, G, N]
    own = torch.arange(by_heads.shape[-1], device=pos.device) == now
    places = places_of(by_heads & ~own, min(most, by_heads.shape[-1]))
    last = (by_heads & own).any(-1, keepdim=True)
    there = torch.cat([places >= 0, last], -1).transpose(1, 2)[:, None]  # [B, 1, n + 1, G]
    at = torch.cat([places.clamp(min=0), now.expand_as(last)], -1).long()
    at = (at[..., None] * size + torch.arange(size, device=pos.device)).flatten(2)
    heads = None if chosen.dim() == 3 else torch.arange(at.shape[1], device=pos.device)
    at = at.transpose(1, 2)
    seen = at <= pos[:, None, None]
    made = (_at_places(cache, at, seen, heads) for cache in caches)
    there = there[..., 0] if heads is None else there
    return places.shape[-1] * size + pos % size, there, *made


def _at_places(cache: Any, at: Tensor, seen: Tensor, heads: Tensor | None) -> Tensor:
    """What a cache has of each sequence at places [B, M, G], each of a head, [B, M, G, ...];
    without heads [B, M, ...]. It is 0 where nothing is `seen` yet, as there may be no number."""
    at = at.clamp(max=cache.shape[1] - 1)
    rows = torch.arange(len(at), device=at.device)[:, None, None]
    first, second = rows, at
    if isinstance(cache, Pages):
        first, second = cache.table.long()[rows, at // cache.each], at % cache.each
        cache = cache.memory
    found = cache[first, second] if heads is None else cache[first, second, heads]
    seen = seen.reshape(*seen.shape, *[1] * (found.dim() - seen.dim()))
    found = torch.where(seen, found, torch.zeros_like(found))
    return found[:, :, 0] if heads is None else found


def slot_attention(
    q: Tensor, k: Tensor, v: Tensor, pos: Tensor, scale: float = 1.0
) -> Tensor:  # fmt: skip
    """`softmax_attention` of one token of each sequence, to those at places 0 to pos [B] of its
    cache. Heads that read the same are so many readers: what they read is loaded once.

    q [B, 1, H, K], k [B, S, G, K], v [B, S, G, V], where H is a multiple of G -> [B, 1, H, V]
    """
    read, groups = torch.arange(k.shape[1], device=pos.device) <= pos[:, None], k.shape[2]
    if groups != v.shape[2]:
        return softmax_attention(q, k, v, read=read, scale=scale)
    readers = q[:, 0].unflatten(1, (groups, -1)).transpose(1, 2)
    o = softmax_attention(readers, k, v, read=read, scale=scale)
    return o.transpose(1, 2).flatten(1, 2)[:, None]


def combined_since(x: Tensor, pos: Tensor, cumulative: Callable) -> Tensor:
    """Sums (or products) of x over the tokens behind each one in a cache, up to that at place
    pos [B], which is the reader: `combined_between` of one token of each sequence.

    x [B, 1, S, ...] -> [B, 1, S, ...]; at places from pos on it is 0
    (or 1).
    """
    neutral = 0.0 if cumulative is torch.cumsum else 1.0
    seen = torch.arange(x.shape[2], device=x.device) <= pos[:, None]
    seen = seen.reshape(len(pos), 1, x.shape[2], *[1] * (x.dim() - 3))
    later = cumulative(torch.where(seen, x, neutral).flip(2), 2).flip(2)[:, :, 1:]
    return torch.cat([later, torch.full_like(x[:, :, :1], neutral)], 2)
