"""What functions that launch kernels of chunks call, and what those kernels call."""

from __future__ import annotations

import math
import warnings

import torch
from torch import Tensor

from archc.runtime.jit import kernel
from archc.runtime.ops import transformed
from archc.runtime.optional import tl, triton


def block_of(size: int, most: int = 1 << 20) -> int:
    """The length of a tile along an axis: a power of 2, long enough for products of matrices."""
    return min(most, max(16, 1 << (size - 1).bit_length()))


def by_kernels(chunk: int | None, *tensors: Tensor) -> bool:
    """Whether kernels can do it: on a GPU, in their dtypes, in chunks of their lengths."""
    kinds, device = (torch.float32, torch.bfloat16, torch.float16), tensors[0].device
    if device.type != "cuda" or chunk not in (16, 32, 64):
        return False
    for x in tensors:
        if x.dtype not in kinds or x.device != device:
            return False
    return has_triton()


def has_triton() -> bool:
    """Whether there is Triton, which is told if not; refused if it is older than what kernels are
    written for."""
    if triton is None:
        warnings.warn("Triton is not installed: the eager form runs on the GPU", stacklevel=2)
        return False
    major, minor, *_ = triton.__version__.split(".", 2)
    if (int(major), int(minor)) < (3, 5):
        raise RuntimeError(
            f"the kernels of this file need Triton 3.5 or newer, got {triton.__version__}; without "
            "Triton it runs in PyTorch"
        )
    return True


def settings_of(dtype: torch.dtype, warps: int, *loaded: int) -> dict:
    """How a kernel is launched. One that walks, and loads so many bytes at each chunk, loads as
    many chunks ahead as there is room for beside the operands of products, in float32 twice as
    many bytes as elsewhere."""
    room = 232_448 if dtype.itemsize == 2 else 98_304
    stages = min(3, room // sum(loaded)) if loaded else 1
    return {"num_warps": warps, "num_stages": max(1, stages)}


def chunks_of_segment(
    programs: int, chunks: int, device: torch.device, passes: int = 2, each: int = 1
) -> int:
    """How many chunks a walk has in each segment of a sequence; 0 where it walks whole sequences.

    Segments are walked in some passes, all at once, and joined one after the other, where `each`
    takes as long as so many chunks; all else is about 32 chunks. So it is for fewer programs than
    half of the processors of a GPU, where at most 3 of 4 chunks are left to walk.
    """
    processors = processors_of(device)
    if 2 * programs > processors:
        return 0
    best = math.isqrt(passes * chunks // each)
    segments = max(1, min(2 * processors // max(programs, 1), best))
    length = -(-chunks // segments)
    return length if 4 * (passes * length + each * segments + 32) <= 3 * chunks else 0


def processors_of(device: torch.device) -> int:
    """How many programs a GPU runs at once, at least."""
    if device.type != "cuda":
        return 0
    return torch.cuda.get_device_properties(device).multi_processor_count


def knows_borders(chunk: int | None, *tensors: Tensor) -> bool:
    """Whether an op is given packed sequences as they are: to kernels, which know their borders;
    and where torch compiles, as how many there are and how long is then no part of a graph."""
    compiling = chunk is not None and torch.compiler.is_compiling()
    return compiling or by_kernels(chunk, *tensors)


def own(x: Tensor, dtype: torch.dtype) -> Tensor:
    """The values in memory that is nobody else's, one row after the other."""
    return x.to(dtype).clone(memory_format=torch.contiguous_format)


def needs_gradient(*tensors: Tensor) -> bool:
    """Whether autograd will ask for gradients of some of these, or a transform may."""
    learns = torch.is_grad_enabled() and any(x.requires_grad for x in tensors)
    return learns or transformed(*tensors)


def narrowest(*tensors: Tensor) -> torch.dtype:
    """The dtype of the data: some of it may be kept more exactly. Neither of bfloat16 and float16
    holds the numbers of the other: both are data in float32."""
    dtypes = {x.dtype for x in tensors}
    least = min(dtype.itemsize for dtype in dtypes)
    first, *others = (dtype for dtype in dtypes if dtype.itemsize == least)
    return torch.float32 if others else first


def sums_of(dtype: torch.dtype) -> torch.dtype:
    """In what sums are kept whose differences are wanted: as exact as data of a dtype."""
    return torch.float64 if dtype == torch.float32 else torch.float32


def solve_of(dtype: torch.dtype) -> torch.dtype:
    """In what triangular systems are multiplied: float16 has the digits of tf32 at twice its
    speed."""
    return torch.float32 if dtype == torch.float32 else torch.float16


def numbers_of(dtype: torch.dtype, chunk: int) -> dict:
    """How kernels count for a dtype: that of products of matrices and of sums of gates, and how
    exact products are."""
    dot = {torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}.get(dtype, tl.float32)
    sums = tl.float64 if dtype == torch.float32 else tl.float32
    solve = "tf32x3" if dtype == torch.float32 else "fp16"
    exact = {"DOT": dot, "SUMS": sums, "SOLVE": solve, "PRECISION": "tf32x3"}
    return {"ROWS": chunk, "LEVELS": chunk.bit_length() - 1, **exact}


@kernel
def packed_row(packed_p, at):
    """A row of a table of `packed_tables`."""
    p = packed_p + 7 * at
    p_sequence, base, start = tl.load(p), tl.load(p + 1), tl.load(p + 2)
    return p_sequence, base, start, tl.load(p + 3), tl.load(p + 4), tl.load(p + 5)


@kernel
def packed_batch(packed_p, at):
    """The row of the batch that a row of such a table is of."""
    return tl.load(packed_p + 7 * at + 6)


@kernel
def tile_decay(before, sums, columns, stride, inside, later, row, level):
    """How rows decay from the border between the two halves of their block to them, or from them to
    it: from sums of log gates [ROWS, DIMS], those at the row before, and those in memory at
    `columns` [1, DIMS], `stride` from row to row. A half has 2^level rows."""
    border = (((row >> level) | 1) << level) - 1
    there = tl.load(columns + border[:, None] * stride, inside, 0)
    return tl.exp(tl.where(later, before - there, there - sums).to(tl.float32))


@kernel
def tile_power(x, y):
    """x ** y; of a negative x where y is whole, and 1 where y is 0."""
    x, y = tl.broadcast(tl.cast(x, tl.float32), tl.cast(y, tl.float32))
    size = tl.exp(y * tl.log(tl.abs(x)))
    half = 0.5 * y
    found = tl.where((x < 0.0) & (tl.floor(half) != half), -size, size)
    found = tl.where((x < 0.0) & (tl.floor(y) != y), float("nan"), found)
    return tl.where((y == 0.0) | (x == 1.0), 1.0, found)


@kernel
def tile_remainder(x, y):
    """x - y * floor(x / y), with the sign of y: `%` of Triton has that of x."""
    rest = x % y
    return tl.where(rest * y < 0, rest + y, rest)


@kernel
def tile_quotient(x, y):
    """floor(x / y): `//` of Triton is for integers, and rounds towards 0."""
    whole = x - tile_remainder(x, y)
    return tl.floor(whole / y + 0.5) if whole.dtype.is_floating() else whole // y


@kernel
def tile_exact_dot(a, b, DOT: tl.constexpr, PRECISION: tl.constexpr):
    """a @ b in float32, whatever the data are: what is wider than bfloat16, whose range is that of
    float32, is the nearest number of it and the nearest to the rest."""
    if tl.float32 == DOT:
        return tl.dot(a.to(tl.float32), b.to(tl.float32), input_precision=PRECISION)
    a_near, b_near = a.to(tl.bfloat16), b.to(tl.bfloat16)
    made = tl.dot(a_near, b_near, input_precision=PRECISION)
    if a.dtype != tl.bfloat16:
        a_rest = (a.to(tl.float32) - a_near.to(tl.float32)).to(tl.bfloat16)
        made = tl.dot(a_rest, b_near, made, input_precision=PRECISION)
    if b.dtype != tl.bfloat16:
        b_rest = (b.to(tl.float32) - b_near.to(tl.float32)).to(tl.bfloat16)
        made = tl.dot(a_near, b_rest, made, input_precision=PRECISION)
    return made


@kernel
def tile_inverse_levels(A, ROWS: tl.constexpr, LEVELS: tl.constexpr, PRECISION: tl.constexpr):
    """(I - A)^-1 of a matrix that is 0 on the diagonal and above: blocks of twice the rows from
    the inverses of both halves."""
    i = tl.arange(0, ROWS)
    level_of = i[:, None] ^ i[None, :]
    made = tl.where(level_of == 0, 1.0, tl.where(level_of == 1, A, 0.0))
    for level in range(1, LEVELS):
        below = tl.where((level_of >> level) == 1, A, 0.0)
        if PRECISION == "fp16":
            near = made.to(tl.float16)
            moved = tl.dot(near, below.to(tl.float16))
            made += tl.dot(moved.to(tl.float16), near)
        else:
            moved = tl.dot(made, below, input_precision=PRECISION)
            made += tl.dot(moved, made, input_precision=PRECISION)
    return made


@kernel
def tile_inverse_unit_lower(A, ROWS: tl.constexpr, LEVELS: tl.constexpr, PRECISION: tl.constexpr):
    """The same; "fp16" has the digits of tf32 at twice its speed, but not its range: where numbers
    grow, tf32 does it again."""
    made = tile_inverse_levels(A, ROWS, LEVELS, PRECISION)
    if PRECISION == "fp16":
        outside = tl.sum(tl.sum(tl.where(tl.abs(made) < 1024.0, 0, 1), 1), 0)
        if outside > 0:
            made = tile_inverse_levels(A, ROWS, LEVELS, "tf32")
    return made


@kernel
def tile_matrix_scan(
    x, A_t, ROWS: tl.constexpr, DIMS: tl.constexpr, LEVELS: tl.constexpr, REVERSE: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """h[i] = A h[i - 1] + x[i], REVERSE: h[i] = A h[i + 1] + x[i], for x [ROWS, DIMS] and A_t
    transposed: sums of 2, 4, 8, ... addends, with the matrix squared from each to the next; row by
    row where there is no room to square it: of few rows products want it in two forms at once."""
    i = tl.arange(0, ROWS)
    if DIMS > 128 or (DIMS > 64 and ROWS < 64):
        h = tl.zeros((DIMS,), tl.float32)
        for step in range(ROWS):
            here = (i == (ROWS - 1 - step if REVERSE else step))[:, None]
            h = tl.sum(A_t * h[:, None], 0) + tl.sum(tl.where(here, x, 0.0), 0)
            x = tl.where(here, h[None, :], x)
        return x
    for level in range(LEVELS):
        before = i + (1 << level) if REVERSE else i - (1 << level)
        inside = (before >= 0) & (before < ROWS)
        there = tl.broadcast_to(tl.where(inside, before, i)[:, None], (ROWS, DIMS))
        earlier = tl.where(inside[:, None], tl.gather(x, there, 0), 0.0)
        x += tl.dot(earlier, A_t, input_precision=PRECISION)
        A_t = tl.dot(A_t, A_t, input_precision=PRECISION)
    return x


@kernel
def tile_times(a, b):
    """a * b, as products over a dim take it."""
    return a * b


@kernel
def tile_linear_step(a, b, a_next, b_next):
    """h -> a h + b, and then h -> a_next h + b_next."""
    return a * a_next, b * a_next + b_next


@kernel
def tile_max_plus_step(a, b, a_next, b_next):
    """h -> max(a + h, b), and then h -> max(a_next + h, b_next)."""
    return a + a_next, tl.maximum(b + a_next, b_next)


@kernel
def tile_part(x, part, ROWS: tl.constexpr, DIMS: tl.constexpr, PART: tl.constexpr):
    """Columns `part` [PART] of a tile [ROWS, DIMS], which begin at a multiple of PART."""
    parts = tl.reshape(x, (ROWS, DIMS // PART, PART))
    first = tl.arange(0, DIMS // PART)[:, None] * PART + tl.arange(0, PART)[None, :]
    return tl.sum(tl.where((first == part[None, :])[None, :, :], parts, 0.0), 1)
