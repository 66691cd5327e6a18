"""The tokens that attentions keep, in pages of a pool: each sequence has as many pages as it needs,
wherever they are, and a table says which."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

PAGE = 64
"""Tokens of a page: a multiple of what a kernel reads at a time."""

NOBODY = 0
"""The page of no sequence: what is written for slots without one goes there, and a table names it
where a sequence has no page yet."""


@dataclass(frozen=True, eq=False)
class Pages:
    """The kept values of every token of B sequences: memory [pages, PAGE, ...], and the table [B,
    N] of the pages that each sequence has, in the order of its tokens. It stands where a tensor [B,
    N * PAGE, ...] would. Of blocks of tokens fewer are in a page."""

    memory: Tensor
    table: Tensor

    @property
    def shape(self) -> torch.Size:
        """The shape of the tensor that it stands for."""
        batch, pages = self.table.shape
        return torch.Size([batch, pages * self.each, *self.memory.shape[2:]])

    @property
    def each(self) -> int:
        """How many tokens, or blocks of them, are in a page."""
        return self.memory.shape[1]

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of what is kept."""
        return self.memory.dtype

    @property
    def device(self) -> torch.device:
        """The device of the memory."""
        return self.memory.device

    def alike(self) -> Tensor:
        """A tensor of that shape, dtype and device, which has no memory to speak of."""
        return self.memory.new_empty(1).expand(self.shape)

    def write(self, slot: int, values: Tensor) -> None:
        """Let a sequence that has pages for them begin with values [T, ...]."""
        at = torch.arange(values.shape[0], device=values.device)
        pages = self.table[slot].long()[at // self.each]
        self.memory[pages, at % self.each] = values.to(self.memory.dtype)

    def keep(self, new: Tensor, pos: Tensor) -> None:
        """Write a token new [B, 1, ...] of each sequence at its place pos [B]."""
        self.memory[self._pages(pos), pos % self.each] = new[:, 0].to(self.memory.dtype)

    def at(self, pos: Tensor) -> Tensor:
        """What is kept of each sequence at its place pos [B]: [B, 1, ...]."""
        return self.memory[self._pages(pos), pos % self.each][:, None]

    def _pages(self, pos: Tensor) -> Tensor:
        return self.table.gather(1, (pos // self.each)[:, None])[:, 0].long()

    def of(self, slot: int, length: int) -> Tensor:
        """The first `length` tokens of a sequence, [1, length, ...]."""
        pages = self.table[slot, : -(-length // self.each)].long()
        return self.memory[pages].flatten(0, 1)[None, :length]


def in_order(*caches: Any) -> Any:
    """Caches as tensors [B, S, ...], those in pages copied out of them; 0 where a sequence has no
    page. Of one cache it is that, of several a tuple."""
    found = [_in_order(x) if isinstance(x, Pages) else x for x in caches]
    return tuple(found) if len(found) > 1 else found[0]


def _in_order(pages: Pages) -> Tensor:
    """One cache in pages as a tensor."""
    table = pages.table.long()
    found, own = pages.memory[table], table != NOBODY
    own = own.reshape(*own.shape, *[1] * (found.dim() - 2))
    return torch.where(own, found, torch.zeros_like(found[:1, :1])).flatten(1, 2)


def with_table(*caches: Any) -> tuple:
    """Caches as kernels read them, and the table of their pages: those in pages are memory of all
    sequences [1, pages * PAGE, ...]; without pages the table is None."""
    if not any(isinstance(x, Pages) for x in caches):
        return (*caches, None)
    memories = [x.memory.flatten(0, 1)[None] if isinstance(x, Pages) else x for x in caches]
    return (*memories, next(x.table for x in caches if isinstance(x, Pages)))


def memory_of(cache: Any) -> Any:
    """The tensor that a cache is in."""
    return cache.memory if isinstance(cache, Pages) else cache


def alike_tensors(state: Any) -> Any:
    """A state with a tensor of the same shape for what is in pages, for checks."""
    found = {
        name: part.alike()
        for name, part in zip(state._fields, state, strict=True) if isinstance(part, Pages)
    } if hasattr(state, "_fields") else {}  # fmt: skip
    return state._replace(**found) if found else state
