"""Running sums of the tokens of a head by one kernel, and their gradient."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from archc.runtime.jit import kernel
from archc.runtime.launch import launch_kernel
from archc.runtime.optional import tl


class SumsByKernel(torch.autograd.Function):
    """The sums of tokens of x [B, S, H] up to each one, and what these lack: [2, B, H, S]. PyTorch
    takes a dozen launches for them. What they lack is a constant."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        B, S, H = x.shape
        return sums_by_kernel(x, x, x.new_empty((2, B, H, S), dtype=torch.float32), False)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *d: Tensor) -> Tensor:  # pyright: ignore
        (x,) = ctx.saved_tensors
        made = torch.empty_like(x, memory_format=torch.contiguous_format)
        return sums_by_kernel(d[0][0].transpose(1, 2), x, made, True)


def sums_by_kernel(given: Tensor, x: Tensor, made: Tensor, reverse: bool) -> Tensor:
    """Sums of `given` [B, S, H] into `made`; in `reverse`, of slopes, where x [B, S, H] is large
    enough to have one."""
    B, S, H = x.shape
    launch_kernel(
        running_sums_kernel, B * H, [given, *given.stride(), x, *x.stride(), made], [S, H],
        {"REVERSE": reverse, "BLOCK_S": 1024}, {"num_warps": 4, "num_stages": 1},
    )  # fmt: skip
    return made


@kernel(varying=("S",))
def running_sums_kernel(
    given_p, given_b, given_s, given_h, x_p, x_b, x_s, x_h, made_p, S, H,
    REVERSE: tl.constexpr, BLOCK_S: tl.constexpr,
):  # fmt: skip
    """The tokens of a head are added up in float64, blocks one after the other: from the first on,
    as a number and what it lacks, or from the last one back, for those that are learned."""
    b, h = (tl.program_id(0) // H).to(tl.int64), (tl.program_id(0) % H).to(tl.int64)
    before = tl.zeros([], tl.float64)
    for block in range(0, tl.cdiv(S, BLOCK_S)):
        place = block * BLOCK_S + tl.arange(0, BLOCK_S)
        inside = place < S
        s = (S - 1 - place if REVERSE else place).to(tl.int64)
        given = tl.load(given_p + b * given_b + h * given_h + s * given_s, inside, 0.0)
        given = given.to(tl.float64)
        if not REVERSE:
            given = tl.where(given < -1e5, -1e5, given)
        total = before + tl.cumsum(given, 0)
        before += tl.sum(given, 0)
        if REVERSE:
            x = tl.load(x_p + b * x_b + h * x_h + s * x_s, inside, 0.0).to(tl.float64)
            total = tl.where(x >= -1e5, total, 0.0)
            at = (b * S + s) * H + h
            tl.store(made_p + at, total.to(tl.float32).to(made_p.dtype.element_ty), inside)
        else:
            at, high = (b * H + h) * S + s, total.to(tl.float32)
            tl.store(made_p + at, high, inside)
            lacks = (total - high.to(tl.float64)).to(tl.float32)
            tl.store(made_p + tl.num_programs(0).to(tl.int64) * S + at, lacks, inside)
