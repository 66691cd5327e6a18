"""Functions that printed tile programs call."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def grid_barrier(counter_p, before):
    """Wait until every program of the launch has come here `before` + 1 times.

    `counter_p` is one integer that was 0 at launch. What a program wrote before the barrier, all
    others read after it. All programs must be on the GPU at once (`launch_cooperative_grid`).
    """
    wanted = (before + 1) * tl.num_programs(0)
    tl.debug_barrier()  # every warp's stores are made before one thread says so
    tl.atomic_add(counter_p, 1, sem="acq_rel", scope="gpu")
    while tl.atomic_add(counter_p, 0, sem="acq_rel", scope="gpu") < wanted:
        pass
    tl.debug_barrier()


@triton.jit
def product(a, b):
    """a b, for scans."""
    return a * b


@triton.jit
def larger(a, b):
    """The larger of two, for scans."""
    return tl.maximum(a, b)


@triton.jit
def smaller(a, b):
    """The smaller of two, for scans."""
    return tl.minimum(a, b)
