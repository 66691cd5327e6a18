"""Exchanges between processes that go on while something else is computed, with gradients.

    forward     begun ... what does not read its result ... waited for
    backward    waited for ... what its gradient does not depend on ... begun

Each is one collective forward and one backward. All processes must come to the same collectives in
the same order, so what is exchanged here is read by every process.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from archc.parallel.exchange import alike, flattened
from archc.parallel.mesh import Ranks

PARTS = 3
"""Parts of the heads that an attend is computed in, at most, while others are exchanged."""

LARGE = 2**21
"""Numbers along the tokens from which they are a part."""

Collective = Callable[[Tensor], tuple[Tensor, Any]]
"""Begins to exchange a tensor: where its result will be, and what is waited for."""


class Exchange:
    """A collective, and that of its gradient; each is called once."""

    def __init__(self, ranks: Ranks, what: str, there: Collective, back: Collective):
        self.ranks, self.ways = ranks, ((what, there), (f"the gradient of {what}", back))
        self.begun: tuple[Any, Tensor, Tensor] | None = None

    def begin(self, back: bool, x: Tensor) -> Tensor:
        """The result of a tensor, not to be read before `end`."""
        (what, collective), given = self.ways[back], x.contiguous()
        made, work = self.ranks.ask(what, lambda: collective(given))
        self.begun = work, made, given
        return made

    def end(self, back: bool) -> Tensor:
        """The result, which is there now."""
        assert self.begun is not None
        (work, made, _), self.begun = self.begun, None
        if work is not None:
            self.ranks.ask(self.ways[back][0], work.wait)
        return made


class _Begun(torch.autograd.Function):
    """The result of an exchange, not to be read; backward, the gradient of what was exchanged."""

    @staticmethod
    def forward(ctx: Any, exchange: Exchange, x: Tensor) -> Tensor:
        ctx.exchange = exchange
        return exchange.begin(False, x)

    @staticmethod
    def backward(ctx: Any, *arriving: Tensor) -> Any:
        return None, ctx.exchange.end(True)


class _Ended(torch.autograd.Function):
    """The result, which may be read; backward, its gradient is sent off."""

    @staticmethod
    def forward(ctx: Any, exchange: Exchange, made: Tensor) -> Tensor:
        ctx.exchange = exchange
        return exchange.end(False).view_as(made)

    @staticmethod
    def backward(ctx: Any, *arriving: Tensor) -> Any:
        ctx.exchange.begin(True, arriving[0])
        return None, arriving[0]


def exchanged(
    ranks: Ranks, what: str, there: Collective, back: Collective, x: Tensor
) -> Callable[[], Tensor]:
    """Begins an exchange, and gives what ends it."""
    exchange = Exchange(ranks, what, there, back)
    made = _Begun.apply(exchange, x)
    return lambda: _Ended.apply(exchange, made)


def gathering(
    ranks: Ranks, what: str, values: Sequence[Tensor]
) -> Callable[[], list[tuple[Tensor, ...]]]:
    """Begins to gather the values of every process, each in one exchange, so that those of all
    processes lie one after the other, and gives what ends it: they by rank. Shapes are the same on
    all of them."""

    def every(x: Tensor) -> tuple[Tensor, Any]:
        made = x.new_empty(ranks.count * len(x))
        return made, dist.all_gather_into_tensor(made, x, group=ranks.group, async_op=True)

    def own(d: Tensor) -> tuple[Tensor, Any]:
        made = d.new_empty(len(d) // ranks.count)
        return made, dist.reduce_scatter_tensor(made, d, group=ranks.group, async_op=True)

    begun = [exchanged(ranks, what, every, own, flattened([x])) for x in values]

    def end() -> list[tuple[Tensor, ...]]:
        found = []
        for x, ended in zip(values, begun, strict=True):
            found.append([part.view(x.shape) for part in ended().split(x.numel())])
        return [*zip(*found, strict=True)]

    return end


def halves_of(ranks: Ranks) -> tuple[int, int]:
    """The halves of parts that a process computes, counted along the sequence: one of the first
    and one of the last, so that all processes read as many earlier tokens."""
    return ranks.rank, 2 * ranks.count - 1 - ranks.rank


def moving(
    ranks: Ranks, what: str, back: bool, values: Sequence[Sequence[Tensor]]
) -> Callable[[], list[list[Tensor]]]:
    """Begins to move halves, and gives what ends it: the two halves of each value that this process
    computes, from those of its part of the sequence, or with `back` the other way."""
    last = 2 * ranks.count - 1
    home, away = (2 * ranks.rank, 2 * ranks.rank + 1), halves_of(ranks)
    have, want = (away, home) if back else (home, away)
    ends = [(n // 2, min(n, last - n)) for n in range(last + 1)]
    sent = sorted(have, key=lambda n: (ends[n][not back], n))
    arriving = sorted(want, key=lambda n: (ends[n][back], n))
    taken, given = (
        [[ends[n][side] for n in each].count(rank) for rank in range(ranks.count)]
        for each, side in ((arriving, back), (sent, not back))
    )

    there, again = _to_each(ranks, taken, given), _to_each(ranks, given, taken)
    kinds, begun = alike([first for first, _ in values]), []
    for places in kinds:
        rows = [values[i][have.index(n)] for n in sent for i in places]
        stacked = flattened(rows).unflatten(0, (2, -1))
        begun.append(exchanged(ranks, what, there, again, stacked))

    def end() -> list[list[Tensor]]:
        found = [[*pair] for pair in values]
        for places, ended in zip(kinds, begun, strict=True):
            made = ended()
            for n, half in enumerate(want):
                parts = made[arriving.index(half)].split([values[i][n].numel() for i in places])
                for i, part in zip(places, parts, strict=True):
                    found[i][n] = part.to(values[i][n].dtype).view(values[i][n].shape)
        return found

    return end


def _to_each(ranks: Ranks, taken: list[int], given: list[int]) -> Collective:
    """The exchange of rows, as many of which come from each process, and go there."""

    def run(x: Tensor) -> tuple[Tensor, Any]:
        made, group = torch.empty_like(x), ranks.group
        return made, dist.all_to_all_single(made, x, taken, given, group=group, async_op=True)

    return run
