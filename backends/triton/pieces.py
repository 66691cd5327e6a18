"""Triton functions that generated files are made of: printed into them, never imported by them."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


def kernel(function):
    """A kernel of Triton, where there is Triton; T and the number of chunks make no new one."""
    return triton.jit(function, do_not_specialize=["T", "CHUNKS"]) if triton else function


def block_of(size: int, most: int = 1 << 20) -> int:
    """The length of a tile along an axis: a power of 2, long enough for products of matrices."""
    return min(most, max(16, triton.next_power_of_2(size)))


def by_kernels(chunk: int, *tensors: Tensor) -> bool:
    """Whether kernels can do it: on a GPU, in their dtypes, in chunks of their lengths."""
    kinds = (torch.float32, torch.bfloat16, torch.float16)
    fits = all(x.is_cuda and x.dtype in kinds and x.numel() for x in tensors)
    return triton is not None and fits and chunk in (16, 32, 64)


def narrowest(*tensors: Tensor) -> torch.dtype:
    """The dtype of the data: some of it may be kept more exactly."""
    return min((x.dtype for x in tensors), key=lambda dtype: dtype.itemsize)


def numbers_of(dtype: torch.dtype, chunk: int) -> dict:
    """How kernels count for a dtype: that of products of matrices, and how exact they are."""
    dot = {torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}.get(dtype, tl.float32)
    levels = chunk.bit_length() - 1
    return {"ROWS": chunk, "LEVELS": levels, "DOT": dot, "SOLVE": "tf32x3", "PRECISION": "tf32x3"}


@kernel
def same(ROWS: tl.constexpr, half):
    """The pairs of rows in the same block of `half` rows."""
    i = tl.arange(0, ROWS) // half
    return i[:, None] == i[None, :]


@kernel
def corner(ROWS: tl.constexpr, half):
    """The pairs of a row in the second and one in the first half of the same 2 * half rows."""
    i = tl.arange(0, ROWS) // half
    return (i[:, None] % 2 == 1) & (i[None, :] + 1 == i[:, None])


@kernel
def sums_of(pairs, x):
    """At each row the sum of x over the rows that it is paired with."""
    return tl.dot(tl.where(pairs, 1.0, 0.0), x, input_precision="tf32x3")


@kernel
def half_decays(g, ROWS: tl.constexpr, half, EXCLUSIVE: tl.constexpr):
    """How a value decays from the border between two halves to each row, and from each row to the
    border after it: log gates g [ROWS, DIMS] are summed, never subtracted. EXCLUSIVE: a row's own
    gate is none of its decay. Infinite gates are as good as huge ones."""
    i = tl.arange(0, ROWS)
    near, finite = same(ROWS, half), tl.maximum(g, -1e30)
    if EXCLUSIVE:
        until = sums_of(near & (i[None, :] < i[:, None]), finite)
    else:
        until = sums_of(near & (i[None, :] <= i[:, None]), finite)
    return tl.exp(until), tl.exp(sums_of(near & (i[None, :] > i[:, None]), finite))


@kernel
def tile_decayed_gram(
    a, b, g, ROWS: tl.constexpr, DIMS: tl.constexpr, LEVELS: tl.constexpr, EXCLUSIVE: tl.constexpr,
    DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """A[i, j] = sum of a[i] exp(sum of g over j < r <= i) b[j] for j < i: level by level of the
    binary tree of the rows, each a product of two values that decay to the border between halves"""
    made = tl.zeros((ROWS, ROWS), tl.float32)
    for level in range(LEVELS):
        until, after = half_decays(g, ROWS, 1 << level, EXCLUSIVE)
        left, right = (a * until).to(DOT), tl.trans((b * after).to(DOT))
        product = tl.dot(left, right, input_precision=PRECISION)
        made = tl.where(corner(ROWS, 1 << level), product, made)
    return made


@kernel
def tile_decayed_mix(
    A, b, g, ROWS: tl.constexpr, DIMS: tl.constexpr, LEVELS: tl.constexpr, EXCLUSIVE: tl.constexpr,
    DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """o[i] = sum over j < i of A[i, j] exp(sum of g over j < r <= i) b[j]."""
    made = tl.zeros((ROWS, DIMS), tl.float32)
    for level in range(LEVELS):
        until, after = half_decays(g, ROWS, 1 << level, EXCLUSIVE)
        pairs = tl.where(corner(ROWS, 1 << level), A, 0.0).to(DOT)
        made += until * tl.dot(pairs, (b * after).to(DOT), input_precision=PRECISION)
    return made


@kernel
def tile_decayed_mix_back(
    A_t, a, g, ROWS: tl.constexpr, DIMS: tl.constexpr, LEVELS: tl.constexpr,
    EXCLUSIVE: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """o[j] = sum over i > j of A[i, j] exp(sum of g over j < r <= i) a[i], from A transposed."""
    made = tl.zeros((ROWS, DIMS), tl.float32)
    for level in range(LEVELS):
        until, after = half_decays(g, ROWS, 1 << level, EXCLUSIVE)
        pairs = tl.where(tl.trans(corner(ROWS, 1 << level)), A_t, 0.0).to(DOT)
        made += after * tl.dot(pairs, (a * until).to(DOT), input_precision=PRECISION)
    return made


@kernel
def tile_decayed_gate_gradient(
    A, A_t, a, b, g, ROWS: tl.constexpr, DIMS: tl.constexpr, LEVELS: tl.constexpr,
    EXCLUSIVE: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """At each row r the sum over i >= r > j (EXCLUSIVE: i > r) of a[i] A[i, j] exp(span) b[j]."""
    i = tl.arange(0, ROWS)
    made = tl.zeros((ROWS, DIMS), tl.float32)
    for level in range(LEVELS):
        until, after = half_decays(g, ROWS, 1 << level, EXCLUSIVE)
        pairs = tl.where(corner(ROWS, 1 << level), A, 0.0).to(DOT)
        pairs_t = tl.where(tl.trans(corner(ROWS, 1 << level)), A_t, 0.0).to(DOT)
        later = a * until * tl.dot(pairs, (b * after).to(DOT), input_precision=PRECISION)
        earlier = b * after * tl.dot(pairs_t, (a * until).to(DOT), input_precision=PRECISION)
        near = same(ROWS, 1 << level)
        if EXCLUSIVE:
            made += sums_of(near & (i[None, :] > i[:, None]), later)
        else:
            made += sums_of(near & (i[None, :] >= i[:, None]), later)
        made += sums_of(near & (i[None, :] < i[:, None]), earlier)
    return made


@kernel
def tile_inverse_unit_lower(A, ROWS: tl.constexpr, LEVELS: tl.constexpr, PRECISION: tl.constexpr):
    """(I - A)^-1 of a matrix that is 0 on the diagonal and above: blocks of twice the rows from
    the inverses of both halves."""
    i = tl.arange(0, ROWS)
    made = tl.where(i[:, None] == i[None, :], 1.0, 0.0)
    for level in range(LEVELS):
        below = tl.where(corner(ROWS, 1 << level), A, 0.0)
        moved = tl.dot(made, below, input_precision=PRECISION)
        made += tl.dot(moved, made, input_precision=PRECISION)
    return made


@kernel
def tile_linear_step(a, b, a_next, b_next):
    """h -> a h + b, and then h -> a_next h + b_next."""
    return a * a_next, b * a_next + b_next


@kernel
def tile_max_plus_step(a, b, a_next, b_next):
    """h -> max(a + h, b), and then h -> max(a_next + h, b_next)."""
    return a + a_next, tl.maximum(b + a_next, b_next)
