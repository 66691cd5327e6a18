"""Gradients of large parameters, whose sums over the parts of a sequence begin as soon as they are
there and are waited for at the end of the layer's backward: exchanged while the rest is computed.

    forward     waited for -- begun -- first piece that reads it ... last piece
    backward    last: waits    as soon as no piece has more for it: starts the sum
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from archc.parallel.mesh import Ranks

LARGE = 2**20
"""Numbers of a parameter from which its gradient is summed alone."""


class Sums:
    """The sums that a backward has begun, by their places among the parameters."""

    def __init__(self, ranks: Ranks, what: str):
        self.ranks, self.what = ranks, f"the gradient of {what}"
        self.begun: dict[int, tuple[Any, Tensor]] = {}

    def begin(self, place: int, d: Tensor) -> Tensor:
        """Start the sum of a gradient, which is not to be read before `end`."""
        total = d.clone(memory_format=torch.contiguous_format)
        group = self.ranks.group
        work = self.ranks.ask(self.what, lambda: dist.all_reduce(total, group=group, async_op=True))
        self.begun[place] = work, total
        return total

    def end(self, place: int, d: Tensor) -> Tensor:
        """The sum of a gradient, begun or not."""
        if place not in self.begun:
            self.begin(place, d)
        work, total = self.begun.pop(place)
        if work is not None:
            self.ranks.ask(self.what, work.wait)
        return total

    def waited_for(self, values: Sequence[Tensor]) -> list[Tensor]:
        """The parameters, for which the end of the backward waits."""
        return [*_WaitedFor.apply(self, *values)]

    def early(self, place: int, x: Tensor) -> Tensor:
        """One of them where it is read first: from there on nothing has a gradient for it."""
        return _Begun.apply(self, place, x)


class _WaitedFor(torch.autograd.Function):
    """Values; backward, the sums of their gradients."""

    @staticmethod
    def forward(ctx: Any, sums: Sums, *values: Tensor) -> Any:
        ctx.sums = sums
        return tuple(each.view_as(each) for each in values)

    @staticmethod
    def backward(ctx: Any, *arriving: Tensor) -> Any:
        return None, *(ctx.sums.end(i, d) for i, d in enumerate(arriving))


class _Begun(torch.autograd.Function):
    """A value; backward, the sum of its gradient begins."""

    @staticmethod
    def forward(ctx: Any, sums: Sums, place: int, x: Tensor) -> Tensor:
        ctx.sums, ctx.place = sums, place
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *arriving: Tensor) -> Any:
        (d,) = arriving
        return None, None, ctx.sums.begin(ctx.place, d)
