"""The fold of forget gates' attention by warps of three kinds, by hand in Gluon, on one GPU of
compute capability 9: what a printer of tile programs for folds is to reach.

    python -m benchmarks.kinds_of_warps -o benchmarks/results/kinds_of_warps.json

One warp loads: blocks of keys and values by the copy engine, into a ring of places in shared memory
with a barrier each for what is there and for what is free again, and the sums of the log of gates.
Two groups of four warps each walk them for 64 readers. `ahead`: the scores of the next block are
multiplied while those of this one become weights. Each way is held against float64 at 512 tokens
and against the generated kernel at 8,192, and timed beside it: q, k, v [2, T, 32, 128] in bfloat16.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from benchmarks.attention import Row, drawn, gates, module_of, no_more
from benchmarks.rows import Record, arguments, timed

ROWS, D, REGISTERS = 128, 128, 232
"""Readers of a program, the length of vectors, and registers of a thread that weighs: with the 40
of one that loads they are all that a processor has."""

LOG2E = gl.constexpr(1.4426950408889634)

WAYS: Mapping[str, dict[str, Any]] = {
    "ahead": {"N": 128, "STAGES": 2, "AHEAD": True, "G": 4},
    "in order": {"N": 128, "STAGES": 2, "AHEAD": False, "G": 4},
    "ahead, blocks of 64 tokens": {"N": 64, "STAGES": 4, "AHEAD": True, "G": 4},
    "ahead, three stages": {"N": 128, "STAGES": 3, "AHEAD": True, "G": 4},
    "ahead, a head at a time": {"N": 128, "STAGES": 2, "AHEAD": True, "G": 1},
    "ahead, all heads at once": {"N": 128, "STAGES": 2, "AHEAD": True, "G": 64},
}
"""Tokens of a block, places of the ring, and heads whose longest programs come first, together."""


@gluon.jit
def moved(stage, phase, STAGES: gl.constexpr):
    """The next place of the ring; its phase is another when all have been used."""
    stage += 1
    if stage == STAGES:
        stage = 0
        phase ^= 1
    return stage, phase


@gluon.jit
def load(q_d, k_d, v_d, sums_p, sums_t, sums_part, tiles, bars, row, column, first, count,
         N: gl.constexpr, STAGES: gl.constexpr, D: gl.constexpr):  # fmt: skip
    """The program of the warp that loads."""
    q_s, k_s, v_s, c_s = tiles
    q_ready, k_ready, k_free, v_ready, v_free = bars
    mbarrier.expect(q_ready, 2 * 64 * D * 2)
    for half in gl.static_range(2):
        at = [row + first + 64 * half, column]
        tma.async_copy_global_to_shared(q_d, at, q_ready, q_s.index(half))
    i = gl.arange(0, N, gl.BlockedLayout([1], [32], [gl.num_warps()], [0]))
    origin = gl.load(sums_p + first * sums_t)
    origin_low = gl.load(sums_p + first * sums_t + sums_part)
    stage, phase = 0, 1
    for j in range(count):
        s = (count - 1 - j) * N
        c_at = sums_p + (s + i) * sums_t
        c = gl.load(c_at) - origin + (gl.load(c_at + sums_part) - origin_low)
        k_bar, v_bar = k_ready.index(stage), v_ready.index(stage)
        mbarrier.wait(k_free.index(stage), phase)
        mbarrier.expect(k_bar, N * D * 2)
        tma.async_copy_global_to_shared(k_d, [row + s, column], k_bar, k_s.index(stage))
        c_s.index(stage).store(c * LOG2E)
        mbarrier.arrive(k_bar, count=1)
        mbarrier.wait(v_free.index(stage), phase)
        mbarrier.expect(v_bar, N * D * 2)
        tma.async_copy_global_to_shared(v_d, [row + s, column], v_bar, v_s.index(stage))
        stage, phase = moved(stage, phase, STAGES)


@gluon.jit
def weights(s, c_s, m, total, t, begin, scale, N: gl.constexpr, MASKED: gl.constexpr):
    """Weights of a block of scores [64, N], the largest so far, their sum, and what is left of what
    was summed before. The sum of the reader is in all scores alike, and left out."""
    along: gl.constexpr = gl.SliceLayout(0, s.type.layout)
    s = s * scale - c_s.load(along)[None, :]
    if MASKED:
        read = begin + gl.arange(0, N, along)
        s = gl.where(t[:, None] >= read[None, :], s, float("-inf"))
    m_next = gl.maximum(m, gl.max(s, 1))
    p = gl.exp2(s - m_next[:, None])
    decay = gl.exp2(m - m_next)
    return p, m_next, total * decay + gl.sum(p, 1), decay


@gluon.jit
def ahead(q, p, carried, t, begin, places, tiles, bars, zero, scale, N: gl.constexpr,
          STAGES: gl.constexpr, MASKED: gl.constexpr):  # fmt: skip
    """A turn: the scores of a block, and the sum of the values of the one before by its weights."""
    _, k_s, v_s, c_s = tiles
    _, k_ready, k_free, v_ready, v_free = bars
    v_stage, v_phase, stage, phase = places
    acc, m, total = carried
    mbarrier.wait(k_ready.index(stage), phase)
    k = k_s.index(stage).permute([1, 0])
    s_token = warpgroup_mma(q, k, zero, use_acc=False, is_async=True)
    mbarrier.wait(v_ready.index(v_stage), v_phase)
    acc_token = warpgroup_mma(p, v_s.index(v_stage), acc, is_async=True)
    s = warpgroup_mma_wait(1, [s_token])
    p_next, m, total, decay = weights(s, c_s.index(stage), m, total, t, begin, scale, N, MASKED)
    mbarrier.arrive(k_free.index(stage), count=1)
    acc, p = warpgroup_mma_wait(0, [acc_token, p])
    mbarrier.arrive(v_free.index(v_stage), count=1)
    acc = acc * gl.convert_layout(decay, gl.SliceLayout(1, acc.type.layout))[:, None]
    p = gl.convert_layout(p_next.to(gl.bfloat16), p.type.layout)
    v_stage, v_phase = stage, phase
    stage, phase = moved(stage, phase, STAGES)
    return p, (acc, m, total), (v_stage, v_phase, stage, phase)


@gluon.jit
def in_order(q, carried, t, begin, places, tiles, bars, zero, scale, N: gl.constexpr,
             STAGES: gl.constexpr, MASKED: gl.constexpr):  # fmt: skip
    """A turn: the scores of a block, its weights, and the sum of its values."""
    _, k_s, v_s, c_s = tiles
    _, k_ready, k_free, v_ready, v_free = bars
    stage, phase = places
    acc, m, total = carried
    mbarrier.wait(k_ready.index(stage), phase)
    k = k_s.index(stage).permute([1, 0])
    s_token = warpgroup_mma(q, k, zero, use_acc=False, is_async=True)
    s = warpgroup_mma_wait(0, [s_token])
    p, m, total, decay = weights(s, c_s.index(stage), m, total, t, begin, scale, N, MASKED)
    mbarrier.arrive(k_free.index(stage), count=1)
    acc = acc * gl.convert_layout(decay, gl.SliceLayout(1, acc.type.layout))[:, None]
    p = gl.convert_layout(p.to(gl.bfloat16), gl.DotOperandLayout(0, acc.type.layout, 2))
    mbarrier.wait(v_ready.index(stage), phase)
    acc_token = warpgroup_mma(p, v_s.index(stage), acc, is_async=True)
    acc, p = warpgroup_mma_wait(0, [acc_token, p])
    mbarrier.arrive(v_free.index(stage), count=1)
    return (acc, m, total), moved(stage, phase, STAGES)


@gluon.jit
def walk(q, carried, t, tiles, bars, zero, count, scale, N: gl.constexpr, STAGES: gl.constexpr,
         AHEAD: gl.constexpr):  # fmt: skip
    """The sum of the values by weights, the largest score and the sum of weights; the blocks at the
    diagonal come first, and they alone have masks."""
    _, k_s, v_s, c_s = tiles
    _, k_ready, k_free, v_ready, _ = bars
    last = (count - 1) * N
    if AHEAD:
        acc, m, total = carried
        mbarrier.wait(k_ready.index(0), 0)
        s = warpgroup_mma(q, k_s.index(0).permute([1, 0]), zero, use_acc=False)
        p, m, total, _ = weights(s, c_s.index(0), m, total, t, last, scale, N, True)
        mbarrier.arrive(k_free.index(0), count=1)
        p = gl.convert_layout(p.to(gl.bfloat16), gl.DotOperandLayout(0, acc.type.layout, 2))
        carried, places = (acc, m, total), (0, 0, 1, 0)
        if N < 128:
            p, carried, places = ahead(q, p, carried, t, last - N, places, tiles, bars, zero,
                                       scale, N, STAGES, True)  # fmt: skip
        for j in range(128 // N, count):
            p, carried, places = ahead(q, p, carried, t, last - j * N, places, tiles, bars, zero,
                                       scale, N, STAGES, False)  # fmt: skip
        acc, m, total = carried
        v_stage, v_phase, _, _ = places
        mbarrier.wait(v_ready.index(v_stage), v_phase)
        return warpgroup_mma(p, v_s.index(v_stage), acc), m, total
    else:
        places = (0, 0)
        for j in gl.static_range(128 // N):
            carried, places = in_order(q, carried, t, last - j * N, places, tiles, bars, zero,
                                       scale, N, STAGES, True)  # fmt: skip
        for j in range(128 // N, count):
            carried, places = in_order(q, carried, t, last - j * N, places, tiles, bars, zero,
                                       scale, N, STAGES, False)  # fmt: skip
        return carried


@gluon.jit
def weigh(given, tiles, bars, W: gl.constexpr, N: gl.constexpr, STAGES: gl.constexpr,
          D: gl.constexpr, AHEAD: gl.constexpr):  # fmt: skip
    """The program of a group of warps that multiplies and weighs, for 64 readers."""
    o_d, lse_p, sums_p, sums_t, sums_part, row, column, first, lse_at, count, scale = given
    q = tiles[0].index(W)
    of_s: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, N, 16])
    of_o: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, D, 16])
    over: gl.constexpr = gl.SliceLayout(1, of_s)
    t = first + W * 64 + gl.arange(0, 64, over)
    m = gl.full([64], -1e30, gl.float32, over)  # a whole block may be masked
    total = gl.full([64], 0.0, gl.float32, over)
    acc = gl.full([64, D], 0.0, gl.float32, of_o)
    zero = gl.full([64, N], 0.0, gl.float32, of_s)
    mbarrier.wait(bars[0], 0)
    carried = (acc, m, total)
    acc, m, total = walk(q, carried, t, tiles, bars, zero, count, scale, N, STAGES, AHEAD)
    at, t_at = sums_p + first * sums_t, sums_p + t * sums_t
    of_t = gl.load(t_at) - gl.load(at) + (gl.load(t_at + sums_part) - gl.load(at + sums_part))
    gl.store(lse_p + lse_at + t, m / LOG2E + gl.log(total) + of_t)
    o = acc / gl.convert_layout(total, gl.SliceLayout(1, of_o))[:, None]
    q.store(o.to(gl.bfloat16))
    fence_async_shared()
    tma.async_copy_shared_to_global(o_d, [row + first + W * 64, column], q)
    tma.store_wait(0)


@gluon.jit
def ring(STAGES: gl.constexpr, N: gl.constexpr, D: gl.constexpr, q_d, k_d):
    """Shared memory and its barriers: queries, and places for keys, values and sums."""
    one: gl.constexpr = mbarrier.MBarrierLayout()
    flat: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    q_s = gl.allocate_shared_memory(gl.bfloat16, [2, 64, D], q_d.layout)
    k_s = gl.allocate_shared_memory(gl.bfloat16, [STAGES, N, D], k_d.layout)
    v_s = gl.allocate_shared_memory(gl.bfloat16, [STAGES, N, D], k_d.layout)
    c_s = gl.allocate_shared_memory(gl.float32, [STAGES, N], flat)
    q_ready = gl.allocate_shared_memory(gl.int64, [1], one)
    k_ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], one)
    k_free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], one)
    v_ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], one)
    v_free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], one)
    mbarrier.init(q_ready, count=1)
    for i in gl.static_range(STAGES):
        mbarrier.init(k_ready.index(i), count=2)  # the copy, and the sums
        mbarrier.init(v_ready.index(i), count=1)
        mbarrier.init(k_free.index(i), count=2)  # both groups
        mbarrier.init(v_free.index(i), count=2)
    fence_async_shared()
    return (q_s, k_s, v_s, c_s), (q_ready, k_ready, k_free, v_ready, v_free)


@gluon.jit
def forward(q_d, k_d, v_d, o_d, lse_p, sums_p, sums_b, sums_t, sums_h, sums_part, scale, T, H,
            N: gl.constexpr, STAGES: gl.constexpr, D: gl.constexpr, AHEAD: gl.constexpr,
            G: gl.constexpr, REGISTERS: gl.constexpr):  # fmt: skip
    """128 readers of a head: the sum of the values that they read, and the log of its weights."""
    blocks = T // 128
    pid = gl.program_id(0)
    # the longest first, of as many heads as stay in the cache
    rest = pid % (G * blocks)
    bh = pid // (G * blocks) * G + rest % G
    first = (blocks - 1 - rest // G) * 128
    b, h = bh // H, bh % H
    count = (first + 128) // N
    at = sums_p + b * sums_b + h * sums_h
    tiles, bars = ring(STAGES, N, D, q_d, k_d)
    given = (o_d, lse_p, at, sums_t, sums_part, b * T, h * D, first, bh * T, count, scale)
    gl.warp_specialize([
        (weigh, (given, tiles, bars, 0, N, STAGES, D, AHEAD)),
        (weigh, (given, tiles, bars, 1, N, STAGES, D, AHEAD)),
        (load, (q_d, k_d, v_d, at, sums_t, sums_part, tiles, bars, b * T, h * D, first, count,
                N, STAGES, D)),
    ], [4, 1], [REGISTERS, 504 - 2 * REGISTERS])  # fmt: skip


def layout(rows: int) -> Any:
    """How a block of so many vectors lies in shared memory."""
    return gl.NVMMASharedLayout.get_default_for([rows, D], gl.bfloat16)


def constants(way: str) -> dict[str, Any]:
    """What a kernel is compiled for."""
    return {**WAYS[way], "D": D, "REGISTERS": REGISTERS}


def launcher(
    way: str, q: Tensor, k: Tensor, v: Tensor, sums: Tensor
) -> Callable[[], tuple[Tensor, Tensor]]:
    """The function that launches the kernel on q, k, v [B, T, H, 128], each in one piece, and
    running sums [B, T, H, 2]: it gives o and the log of the sum of weights, [B, H, T]."""
    B, T, H, _ = q.shape
    fixed = constants(way)
    o, lse = torch.empty_like(q), q.new_empty((B, H, T), dtype=torch.float32)

    def blocks(x: Tensor, rows: int) -> TensorDescriptor:
        return TensorDescriptor(x, [B * T, H * D], [H * D, 1], [rows, D], layout(rows))

    n, scale = fixed["N"], LOG2E.value / math.sqrt(D)
    vectors = [blocks(q, 64), blocks(k, n), blocks(v, n), blocks(o, 64)]
    given = [*vectors, lse, sums, *sums.stride(), scale, T, H]

    def call() -> tuple[Tensor, Tensor]:
        forward[(B * H * T // ROWS,)](*given, **fixed, num_warps=4)
        return o, lse

    return call


def exact(q: Tensor, k: Tensor, v: Tensor, log_f: Tensor) -> Tensor:
    """The meaning, in float64."""
    sums = log_f.double().cumsum(1).transpose(1, 2)
    s = torch.einsum("bthk,bshk->bhts", q.double(), k.double()) / math.sqrt(D)
    s = s + sums[..., :, None] - sums[..., None, :]
    later = torch.ones(s.shape[-2:], dtype=torch.bool, device=s.device).triu(1)
    return torch.einsum(
        "bhts,bshk->bthk", s.masked_fill(later, -math.inf).softmax(-1), v.double()
    )  # fmt: skip


def away(x: Tensor, y: Tensor) -> float:
    """How far two tensors are apart at most."""
    return (x.double() - y.double()).abs().max().item()


def main() -> int:
    """Check and time every way."""
    given = arguments(__doc__, WAYS).parse_args()
    made, row = Record(given, by=("way",)), Row("fox", gates, {}, 4, (no_more,))
    module, name = module_of(row)
    few, (q, k, v, log_f) = drawn(row, 512), drawn(row, 8192)
    sums = module.running_sums(log_f)
    op = getattr(module, f"{name}_sum")
    ours = partial(op, q, k, sums, sums, v, None, q.shape[1], 0, 0, math.sqrt(D))
    for way in given.names:
        call = launcher(way, q, k, v, sums)
        alone = launcher(way, *few[:3], module.running_sums(few[3]))
        found = {"way": way, "off": away(alone()[0], exact(*few))}
        found |= {"apart": away(call()[0], ours()[0]), "ms": timed(call)}
        found |= {"generated_ms": timed(ours)}
        made.add(found)
        print(*(f"{key} {value}" for key, value in found.items()), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
