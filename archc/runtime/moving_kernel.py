"""Keys that the matrices of later tokens move in place, by a kernel."""

from __future__ import annotations

from torch import Tensor

from archc.runtime.folds import by_folds
from archc.runtime.jit import kernel
from archc.runtime.kernels import block_of
from archc.runtime.launch import launch_kernel
from archc.runtime.moving import move_by_torch
from archc.runtime.optional import tl


def move_by_kernel(
    memory: Tensor, copy: Tensor, S: int, first: int, u: Tensor, w: Tensor
) -> None:  # fmt: skip
    """`move_by_torch` with every key read once, and written once to each memory, which are alike
    but for their dtype; by that itself where no kernel can."""
    if not by_folds(memory, copy, u, w):
        move_by_torch(memory, copy, S, first, u, w)
        return
    if memory.dim() == 3:
        memory, u, w = memory[:, :, None], u[:, :, None], w[:, :, None]
    memory, u, w = memory.flatten(2, -2), u.flatten(2, -3).contiguous(), w.flatten(2, -3)
    (B, _, H, K), wide = memory.shape, block_of(memory.shape[-1])
    rows = max(16, (8192 if copy.dtype == memory.dtype else 4096) // wide)
    blocks = -(-(S - 1) // rows)
    launch_kernel(
        move_kernel, B * H * blocks, [memory, copy, *memory.stride()[:3], u, w.contiguous()],
        [S, first, H, K, blocks], {"RANKS": u.shape[3], "BLOCK_S": rows, "BLOCK_K": wide},
        {"num_warps": 4, "num_stages": 2},
    )  # fmt: skip


@kernel(varying=("S", "FIRST", "BLOCKS"))
def move_kernel(
    k_p, copy_p, k_b, k_s, k_h, u_p, w_p, S, FIRST, H, K, BLOCKS,
    RANKS: tl.constexpr, BLOCK_S: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """A block of keys of a head is moved by each token behind it, from FIRST on.
    k[s] = k[s] + sum[rank]((k[s] . u[t, rank]) w[t, rank]) where s < t
    Of another dtype than k, copy has them too.
    """
    program = tl.program_id(0)
    block, p_h = program % BLOCKS, (program // BLOCKS) % H
    p_b = tl.cast(program // (BLOCKS * H), tl.int64)
    s, i_k = block * BLOCK_S + tl.arange(0, BLOCK_S), tl.arange(0, BLOCK_K)
    inside = (s < S - 1)[:, None] & (i_k < K)[None, :]
    at = p_b * k_b + p_h * k_h + tl.cast(s, tl.int64)[:, None] * k_s + i_k[None, :]
    k = tl.load(k_p + at, inside, 0.0).to(tl.float32)
    for t in tl.range(tl.maximum(FIRST, block * BLOCK_S + 1), S):
        moved = k
        for rank in tl.static_range(RANKS):
            place = (((p_b * (S - FIRST) + t - FIRST) * H + p_h) * RANKS + rank) * K + i_k
            u = tl.load(u_p + place, i_k < K, 0.0).to(tl.float32)
            w = tl.load(w_p + place, i_k < K, 0.0).to(tl.float32)
            moved += tl.sum(k * u[None, :], 1)[:, None] * w[None, :]
        k = tl.where((s < t)[:, None], moved, k)
    tl.store(k_p + at, k.to(k_p.dtype.element_ty), inside)
    if copy_p.dtype.element_ty != k_p.dtype.element_ty:
        tl.store(copy_p + at, k.to(copy_p.dtype.element_ty), inside)
