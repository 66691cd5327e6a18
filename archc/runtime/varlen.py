"""Softmax attention of packed sequences, by the kernel that torch has for them or of one length
after the other."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache, partial
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn import functional as F

from archc.runtime.layers import softmax_attention
from archc.runtime.packed import bounds_of, one_by_one

CALL_S = 5e-5
"""Seconds that one more length takes on an H200 (`benchmarks/packed_attention.py`)."""

OPERATION_S = 1.3e-15
"""Seconds by which torch's kernel for packed sequences is slower, for each operation, than the one
for a batch; on the same GPU."""


def packed_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens: Tensor | None,
    causal: bool = False,
    dropout: float = 0.0,
    scale: float = 1.0,
) -> Tensor:
    """`softmax_attention` of packed sequences, of each by itself; with no borders, of a batch.

    q [1, T, H, K], k and v [1, T, G, K or V], where H is a multiple of G -> [1, T, H, V]
    """
    if cu_seqlens is None:
        return softmax_attention(q, k, v, causal, dropout, scale=scale)
    lengths = [end - start for start, end in pairwise(bounds_of(cu_seqlens, q))]
    size = -(-max(q.shape[3], v.shape[3]) // 8) * 8
    run = varlen_kernel(q.device) if dropout == 0 and size <= 256 else None
    halves = all(x.dtype in (torch.float16, torch.bfloat16) for x in (q, k, v))
    if run is None or not halves or not one_launch_pays(lengths, q.shape[2] * size, causal):
        each = partial(softmax_attention, causal=causal, dropout=dropout, scale=scale)
        (o,) = one_by_one(each, cu_seqlens, [q, k, v], [])
        return o
    heads = max(k.shape[2], v.shape[2])
    k, v = (
        x if x.shape[2] == heads else x.repeat_interleave(heads // x.shape[2], 2) for x in (k, v)
    )
    padded = (x if x.shape[3] == size else F.pad(x, (0, size - x.shape[3])) for x in (q, k, v))
    given = [x[0] for x in padded]
    borders, most = cu_seqlens.to(torch.int32), max(lengths)
    window = (-1, 0) if causal else (-1, -1)
    o = run(*given, borders, borders, most, most, scale=scale, window_size=window)
    return o[None, ..., : v.shape[3]]


def one_launch_pays(lengths: list[int], width: int, causal: bool) -> bool:
    """Whether one launch for all sequences takes less time than one for each length, with heads of
    `width` numbers in all."""
    operations = (2 if causal else 4) * width * sum(length * length for length in lengths)
    return operations * OPERATION_S < len(set(lengths)) * CALL_S


@cache
def varlen_kernel(device: torch.device) -> Callable | None:
    """torch's attention of packed sequences, where this torch and this GPU have it."""
    if device.type != "cuda" or torch.cuda.get_device_capability(device) < (8, 0):
        return None
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return None
    known = inspect.signature(varlen_attn).parameters
    if not {"scale", "window_size"} <= {*known}:
        return None
    return partial(varlen_attn, enable_gqa=True) if "enable_gqa" in known else varlen_attn
