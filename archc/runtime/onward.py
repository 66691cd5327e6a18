"""Softmax attention of tokens that go on after others, which kernels of torch that lay no weights
out do in two calls: of all earlier tokens, and causal of the own."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

ONWARD_EFFICIENT = 2
ONWARD_CUDNN = 3
"""Kernels of torch as it numbers them: 0 has none, 1 is FlashAttention."""

ONWARD_PAYS = 1 << 23
"""Pairs of tokens from which on two calls take less time than one with a mask: on an H200, 18 heads
of 128 in bfloat16, 0.43 and 0.38 ms at 2,048 x 4,096, 1.7 and 4.2 at 8,192 x 16,384."""

OnwardCall = tuple[int, bool, Tensor, Tensor, Tensor]
"""A call: its kernels, whether it is causal, queries [B, H, T, K], keys and values [B, G, S, K]."""


def onward_call(part: OnwardCall, scale: float) -> tuple[Tensor, Tensor, list[Any]]:
    """The output of a call, the logs of its sums [B, H, T], and what its gradient wants too."""
    kind, causal, q, k, v = part
    ops: Any = torch.ops.aten
    if kind == ONWARD_CUDNN:
        run, given = ops._scaled_dot_product_cudnn_attention, (None, True)
    elif kind == ONWARD_EFFICIENT:
        run, given = ops._scaled_dot_product_efficient_attention, (None, True)
    elif q.is_cuda:
        run, given = ops._scaled_dot_product_flash_attention, ()
    else:
        run, given = ops._scaled_dot_product_flash_attention_for_cpu, ()
    o, total, *more = run(q, k, v, *given, 0.0, causal, scale=scale)
    total = total.squeeze(-1) if total.dim() == o.dim() else total
    return o, total[..., : q.shape[2]], more  # that of ONWARD_EFFICIENT has room for more tokens


def onward_gradient(
    part: OnwardCall, d: Tensor, o: Tensor, total: Tensor, more: list[Any], scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of a call's queries, keys and values, where its output is a part of `o`, and
    the logs of all sums are `total`."""
    kind, causal, q, k, v = part
    ops: Any = torch.ops.aten
    if kind == ONWARD_CUDNN:
        run = ops._scaled_dot_product_cudnn_attention_backward
        borders, seeds = more[:4], more[4:6]
        given = (o, total.unsqueeze(-1), *seeds, None, *borders, 0.0, causal)
    elif kind == ONWARD_EFFICIENT:
        run = ops._scaled_dot_product_efficient_attention_backward
        room, all_three = F.pad(total, (0, -total.shape[2] % 32)), [True, True, True, False]
        given = (None, o, room, *more, 0.0, all_three, causal)
    elif q.is_cuda:
        run = ops._scaled_dot_product_flash_attention_backward
        given = (o, total, *more[:4], 0.0, causal, *more[4:6])
    else:
        run = ops._scaled_dot_product_flash_attention_for_cpu_backward
        given = (o, total, 0.0, causal)
    return run(d, q, k, v, *given, scale=scale)[:3]


def onward_calls(
    kinds: tuple[int, int], q: Tensor, k: Tensor, v: Tensor
) -> tuple[OnwardCall, OnwardCall]:
    """The calls of earlier tokens, and of the own."""
    before = k.shape[2] - q.shape[2]
    return (
        (kinds[0], False, q, k[:, :, :before], v[:, :, :before]),
        (kinds[1], True, q, k[:, :, before:], v[:, :, before:]),
    )


class _Onward(torch.autograd.Function):
    """Two calls whose outputs are weighed by their sums; each has its gradient from the output and
    the sums of both, as weights of either are shares of all."""

    @staticmethod
    def forward(
        ctx: Any, kinds: tuple[int, int], scale: float, q: Tensor, k: Tensor, v: Tensor
    ) -> Tensor:
        (o, total, more), (own, rest, after) = (
            onward_call(p, scale) for p in onward_calls(kinds, q, k, v)
        )
        wide = torch.promote_types(q.dtype, torch.float32)
        share = torch.sigmoid(total.to(wide) - rest.to(wide)).unsqueeze(-1)
        made = torch.lerp(own.to(wide), o.to(wide), share).to(q.dtype)
        sums = torch.logaddexp(total, rest).contiguous()
        ctx.kinds, ctx.scale, ctx.more = kinds, scale, (more, after)
        ctx.save_for_backward(q, k, v, made, sums)
        return made

    @staticmethod
    def backward(ctx: Any, *arriving: Tensor) -> Any:
        q, k, v, made, sums = ctx.saved_tensors
        pairs = zip(onward_calls(ctx.kinds, q, k, v), ctx.more, strict=True)
        first, last = (
            onward_gradient(part, arriving[0], made, sums, more, ctx.scale) for part, more in pairs
        )
        pairs = [(first[i].transpose(1, 2), last[i].transpose(1, 2)) for i in (1, 2)]
        d_k, d_v = (torch.cat(each, 1).transpose(1, 2) for each in pairs)  # token after token
        return None, None, first[0] + last[0], d_k, d_v


def attention_onward(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor | None:
    """softmax(scale q k) v of the last T of S tokens, each of which reads those up to itself; None
    where torch has no such kernels for them, or writes down what is called.

    q [B, H, T, K], k [B, G, S, K], v [B, G, S, V], T < S, H a multiple of G -> [B, H, T, V]
    """
    kind, looked_at = q.device.type, torch._C._are_functorch_transforms_active()
    if kind not in ("cpu", "cuda") or looked_at or torch.compiler.is_compiling():
        return None
    if torch.is_autocast_enabled(kind) and q.dtype != torch.float64:
        q, k, v = (x.to(torch.get_autocast_dtype(kind)) for x in (q, k, v))
    shared = q.shape[1] != k.shape[1]
    if shared and not q.is_cuda:  # kernels for a CPU share no keys
        k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    choose: Any = torch.ops.aten._fused_sdp_choice
    kinds = [
        choose(q, k, v, None, 0.0, causal, scale=scale, enable_gqa=shared)
        for _, causal, q, k, v in onward_calls((0, 0), q, k, v)
    ]
    if 0 in kinds or (q.is_cuda and q.shape[3] % 8):
        return None
    with torch.autocast(kind, enabled=False):
        return _Onward.apply((kinds[0], kinds[1]), scale, q, k, v)
