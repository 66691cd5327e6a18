"""Functions of Triton that generated kernels share, under its interpreter, against formulas in
float64: prints what is computed, and the largest error against the largest value.

    TRITON_INTERPRET=1 python -m tests.backends.triton.interpreted_pieces every
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import triton
import triton.language as tl
from archc.backends.load import load
from archc.backends.triton import elementwise
from torch import Tensor

from archc.functions.definitions import FUNCTIONS as DEFINED
from archc.ir.meaning_ops import FUNCTIONS
from archc.runtime import kernels as pieces
from tests.backends.triton.narrow import rounding

Found = Iterator[tuple[str, Tensor, Tensor]]

inverse_of = pieces.tile_inverse_unit_lower
scanned_by = pieces.tile_matrix_scan
exact_dot = pieces.tile_exact_dot
part_of = pieces.tile_part
decay_of = pieces.tile_decay
linear, max_plus = pieces.tile_linear_step, pieces.tile_max_plus_step
row_of, batch_of = pieces.packed_row, pieces.packed_batch


@triton.jit
def inverse(a_p, y_p, ROWS: tl.constexpr, LEVELS: tl.constexpr, PRECISION: tl.constexpr):
    i = tl.arange(0, ROWS)
    at = i[:, None] * ROWS + i[None, :]
    tl.store(y_p + at, inverse_of(tl.load(a_p + at), ROWS, LEVELS, PRECISION))


@triton.jit
def scanned(
    x_p, a_p, y_p, ROWS: tl.constexpr, DIMS: tl.constexpr, LEVELS: tl.constexpr,
    REVERSE: tl.constexpr,
):  # fmt: skip
    i, k = tl.arange(0, ROWS), tl.arange(0, DIMS)
    at = i[:, None] * DIMS + k[None, :]
    a_t = tl.load(a_p + k[None, :] * DIMS + k[:, None])
    y = scanned_by(tl.load(x_p + at), a_t, ROWS, DIMS, LEVELS, REVERSE, "tf32x3")
    tl.store(y_p + at, y)


@triton.jit
def product(a_p, b_p, y_p, DIMS: tl.constexpr, DOT: tl.constexpr):
    i = tl.arange(0, DIMS)
    at = i[:, None] * DIMS + i[None, :]
    tl.store(y_p + at, exact_dot(tl.load(a_p + at), tl.load(b_p + at), DOT, "tf32x3"))


@triton.jit
def parted(x_p, y_p, first, ROWS: tl.constexpr, DIMS: tl.constexpr, PART: tl.constexpr):
    i, k, p = tl.arange(0, ROWS), tl.arange(0, DIMS), tl.arange(0, PART)
    x = tl.load(x_p + i[:, None] * DIMS + k[None, :])
    y = part_of(x, first + p, ROWS, DIMS, PART)
    tl.store(y_p + i[:, None] * PART + p[None, :], y)


@triton.jit
def decayed(s_p, y_p, level, LATER: tl.constexpr, ROWS: tl.constexpr, DIMS: tl.constexpr):
    i, k = tl.arange(0, ROWS), tl.arange(0, DIMS)
    at = i[:, None] * DIMS + k[None, :]
    sums = tl.load(s_p + at)
    later = (((i >> level) & 1) == 1)[:, None]
    inside = (((i >> level) | 1) << level)[:, None] <= ROWS
    made = decay_of(sums, sums, s_p + k[None, :], DIMS, inside, later, i, level)
    tl.store(y_p + at, made)


@triton.jit
def stepped(a_p, b_p, y_p, ROWS: tl.constexpr, LINEAR: tl.constexpr):
    i = tl.arange(0, ROWS)
    a, b = tl.load(a_p + i), tl.load(b_p + i)
    if LINEAR:
        _, made = tl.associative_scan((a, b), 0, linear)
    else:
        _, made = tl.associative_scan((a, b), 0, max_plus)
    tl.store(y_p + i, made)


@triton.jit
def looked_up(table_p, y_p, at):
    sequence, base, start, end, low, high = row_of(table_p, at)
    tl.store(y_p, sequence)
    tl.store(y_p + 1, base)
    tl.store(y_p + 2, start)
    tl.store(y_p + 3, end)
    tl.store(y_p + 4, low)
    tl.store(y_p + 5, high)
    tl.store(y_p + 6, batch_of(table_p, at))


def filled(kernel: Any, shape: tuple[int, ...], *given: Any, dtype: Any = torch.float32) -> Tensor:
    """What a kernel stores behind its last tensor."""
    tensors = [x for x in given if isinstance(x, Tensor)]
    rest = given[len(tensors) :]
    made = torch.full(shape, -1, dtype=dtype)
    kernel[(1,)](*tensors, made, *rest)
    return made


def exact_inverse(A: Tensor) -> Tensor:
    one = torch.eye(len(A), dtype=torch.float64)
    return torch.linalg.solve_triangular(one - A.double(), one, upper=False, unitriangular=True)


def inverses() -> Found:
    """Of matrices that are 0 on the diagonal and above; "fp16" rounds, unless numbers grow."""
    for rows in (2, 16, 32):
        A = torch.randn(rows, rows).tril(-1) / 4
        levels = rows.bit_length() - 1
        exact = exact_inverse(A)
        yield f"inverse of {rows}", filled(inverse, A.shape, A, rows, levels, "tf32x3"), exact
        if rows == 16:
            near = filled(inverse, A.shape, A, rows, levels, "fp16")
            far = (near - exact).abs().max() / exact.abs().max()
            yield "fp16 rounds", torch.tensor(float(1e-5 < far < 1e-2)), torch.tensor(1.0)
            grows = A * 16
            made = filled(inverse, A.shape, grows, rows, levels, "fp16")
            yield "a wide inverse", made, exact_inverse(grows)


def scans() -> Found:
    """By squares of the matrix, and row by row where there is no room for them."""
    for rows, dims, what in ((16, 16, "squared"), (16, 128, "row by row")):
        x, A = torch.randn(rows, dims), torch.randn(dims, dims) / dims**0.5
        for reverse in (False, True):
            h, found = torch.zeros(dims, dtype=torch.float64), []
            for row in x.flip(0) if reverse else x:
                h = A.double() @ h + row.double()
                found.append(h)
            wanted = torch.stack(found[::-1] if reverse else found)
            levels = rows.bit_length() - 1
            made = filled(scanned, x.shape, x, A, rows, dims, levels, reverse)
            yield f"a scan {what}, reverse: {reverse}", made, wanted


def products() -> Found:
    """In float32 whatever the data are: of parts, where the kernel's products are narrow."""
    a, b = torch.randn(16, 16), torch.randn(16, 16)
    narrow = b.bfloat16()
    yield "a product", filled(product, a.shape, a, b, 16, tl.float32), a.double() @ b.double()
    pairs = {"wide on the left": (a, narrow), "wide on the right": (narrow, a),
             "narrow": (narrow, narrow), "wide on both sides": (a, b)}  # fmt: skip
    for name, (one, other) in pairs.items():
        with rounding():
            made = filled(product, a.shape, one, other, 16, tl.bfloat16)
        wanted = one.double() @ other.double()
        far = float((made - wanted).abs().max() / wanted.abs().max())
        near = far < (1e-4 if name == "wide on both sides" else 1e-5)
        yield f"{name}, off by {far:.0e}", torch.tensor(float(near)), torch.tensor(1.0)


def parts() -> Found:
    x = torch.randn(16, 64)
    for first in (0, 16, 48):
        made = filled(parted, (16, 16), x, first, 16, 64, 16)
        yield f"columns from {first}", made, x[:, first : first + 16]


def decays() -> Found:
    """From the border between the halves of a block to its later rows, and from the earlier."""
    sums = (-torch.rand(8, 16, dtype=torch.float64)).cumsum(0)
    for level in (0, 1, 2):
        made = filled(decayed, (8, 16), sums, level, True, 8, 16)
        wanted = torch.empty_like(sums)
        for i in range(8):
            block = i >> (level + 1) << (level + 1)
            border = block + (1 << level) - 1
            later = i > border
            wanted[i] = torch.exp(sums[i] - sums[border] if later else sums[border] - sums[i])
        yield f"decays at level {level}", made, wanted


def steps() -> Found:
    a, b = torch.rand(16), torch.randn(16)
    h, top, found, most = torch.tensor(0.0), torch.tensor(-torch.inf), [], []
    for x, y in zip(a.double(), b.double(), strict=True):
        h, top = x * h + y, torch.maximum(x + top, y)
        found.append(h)
        most.append(top)
    yield "linear steps", filled(stepped, (16,), a, b, 16, True), torch.stack(found)
    yield "max-plus steps", filled(stepped, (16,), a, b, 16, False), torch.stack(most)


def tables() -> Found:
    table = torch.arange(21).reshape(3, 7) + 100
    for at in range(3):
        made = filled(looked_up, (7,), table, at, dtype=table.dtype)
        yield f"row {at} of a table", made, table[at]


FUNCTION = """
import triton
import triton.language as tl
from archc.runtime.kernels import tile_power, tile_quotient, tile_remainder

@triton.jit
def function(x_p, y_p, z_p, made_p):
    i = tl.arange(0, 64)
    x, y, z = tl.load(x_p + i), tl.load(y_p + i), tl.load(z_p + i)
    {before}
    made = {text}
    tl.store(made_p + i, tl.where(made, 1.0, 0.0) if made.dtype == tl.int1 else made)
"""
"""A kernel for one function of elements."""

OF_CONDITIONS = {"and": (0, 1), "or": (0, 1), "not": (0,), "where": (0,)}
"""Operands that are no numbers."""


def functions() -> Found:
    """Each function of elements, at 0, at equal operands, and between."""
    few = torch.tensor([-2.0, -1.0, -0.5, 0.0, 0.25, 1.0, 3.0, 7.0])
    pair = torch.cartesian_prod(few, few)
    for name, fn in DEFINED.items():
        x, y, z = pair[:, 0], pair[:, 1], pair[:, 0] - 2 * pair[:, 1]
        x = x.abs() + 0.125 if fn.domain.nonnegative else x
        y = torch.where(y == 0, 5.0, y) if name in ("div", "mod", "floordiv") else y
        y = torch.where(x < 0, y.floor(), y).abs() if name == "pow" else y
        operands, lines = [x, y, z][: fn.arity], []
        for place in OF_CONDITIONS.get(name, ()):
            operands[place] = operands[place] > 0
            lines.append(f"{'xyz'[place]} = {'xyz'[place]} > 0")
        text = elementwise.TEXT[name](*"xyz"[: fn.arity])
        kernel = load(FUNCTION.format(before="; ".join(lines) or "pass", text=text), name).function
        exact = [v if v.dtype == torch.bool else v.double() for v in operands]
        wanted = FUNCTIONS[name](*exact).double()
        yield name, filled(kernel, (64,), x.contiguous(), y.contiguous(), z.contiguous()), wanted


def main() -> None:
    torch.manual_seed(0)
    for kind in (inverses, scans, products, parts, decays, steps, tables, functions):
        for what, found, wanted in kind():
            exact = wanted.double()
            error = (found.double() - exact).abs().max() / exact.abs().max().clamp(min=1e-9)
            print(f"{what}: {float(error):.1e}")


if __name__ == "__main__":
    main()
