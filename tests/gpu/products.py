"""Small products of matrices as Triton makes them for this GPU: which shapes are wrong.

    python -m tests.gpu.products

A line for each dtype, number of columns and number of warps, by each of the two assemblers that
Triton 3.5 and 3.6 come with: what is wrong of products of 64 rows, alone and followed by another
one, of factors as they lie in memory and turned around.
"""

from __future__ import annotations

import itertools
import math
import os
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
import triton
import triton.language as tl

from archc.runtime.jit import newer_assembler

ROOT = Path(__file__).parents[2]
ROWS, PROGRAMS = 64, 1056
KINDS = {
    "tf32x3": (torch.float32, "tf32x3", 1e-5),
    "tf32": (torch.float32, "tf32", 5e-3),
    "bfloat16": (torch.bfloat16, "ieee", 5e-2),
    "float16": (torch.float16, "ieee", 5e-3),
}
"""How numbers are kept, how exact products are, and the largest error that is right."""

CHOICES = tuple(itertools.product((16, 32, 64, 128), (False, True), (False, True)))
"""Addends of a sum, whether the right factor is turned around, whether another product follows."""


@triton.jit
def products_kernel(
    a_p, b_p, c_p, out_p, ROWS: tl.constexpr, COLS: tl.constexpr, DEPTH: tl.constexpr,
    TURNED: tl.constexpr, CHAINED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """a b, or c (a b), by every program."""
    program = tl.program_id(0).to(tl.int64)
    i, j, k = tl.arange(0, ROWS), tl.arange(0, COLS), tl.arange(0, DEPTH)
    a = tl.load(a_p + i[:, None] * DEPTH + k[None, :])
    if TURNED:
        b = tl.trans(tl.load(b_p + j[:, None] * DEPTH + k[None, :]))
    else:
        b = tl.load(b_p + k[:, None] * COLS + j[None, :])
    made = tl.dot(a, b, input_precision=PRECISION)
    if CHAINED:
        c = tl.load(c_p + i[:, None] * ROWS + i[None, :])
        made = tl.dot(c, made.to(a.dtype), input_precision=PRECISION)
    tl.store(out_p + program * ROWS * COLS + i[:, None] * COLS + j[None, :], made)


def error_of(kind: str, cols: int, warps: int, depth: int, turned: bool, chained: bool) -> float:
    """The largest error over the largest value; inf where one is no number."""
    dtype, precision, _ = KINDS[kind]
    random = torch.Generator("cuda").manual_seed(0)
    shapes = ((ROWS, depth), (cols, depth) if turned else (depth, cols), (ROWS, ROWS))
    a, b, c = (torch.randn(s, device="cuda", generator=random).to(dtype) for s in shapes)
    out = torch.full((PROGRAMS, ROWS, cols), torch.nan, device="cuda")
    sizes = (ROWS, cols, depth, turned, chained, precision)
    products_kernel[(PROGRAMS,)](a, b, c, out, *sizes, num_warps=warps)
    torch.cuda.synchronize()
    wanted = a.double() @ (b.T if turned else b).double()
    wanted = c.double() @ wanted if chained else wanted
    error = float((out.double() - wanted).abs().max() / wanted.abs().max())
    return torch.inf if math.isnan(error) else error


def here(kind: str, cols: int, warps: int, first: int) -> None:
    """The error of each choice from one on."""
    for depth, turned, chained in CHOICES[first:]:
        print(error_of(kind, cols, warps, depth, turned, chained), flush=True)


def row(kind: str, cols: int, warps: int, around: Mapping[str, str]) -> str:
    """What is wrong, each in a process of its own after one that a bad access ends."""
    found: list[str] = []
    while len(found) < len(CHOICES):
        given = [kind, str(cols), str(warps), str(len(found))]
        command = [sys.executable, "-m", "tests.gpu.products", *given]
        done = subprocess.run(
            command, cwd=ROOT, env=around, capture_output=True, text=True, check=False
        )
        found += done.stdout.split()
        if done.returncode:
            found.append((done.stderr.strip().splitlines() or ["ended"])[-1][:90])
    wrong = []
    for (depth, turned, chained), said in zip(CHOICES, found, strict=False):
        text = f"depth {depth}{' turned' * turned}{' chained' * chained}"
        if not said[:1].isdigit() or float(said) > KINDS[kind][2]:
            wrong.append(f"{text}: {said}")
    title = f"{kind:9} {cols:3} columns {warps} warps"
    return f"{title}  {'WRONG ' + '; '.join(wrong) if wrong else 'right'}"


def main() -> None:
    """All rows, or one here."""
    if len(sys.argv) > 1:
        kind, *numbers = sys.argv[1:]
        here(kind, *map(int, numbers))
        return
    older = {name: x for name, x in os.environ.items() if name != "TRITON_PTXAS_PATH"}
    newer_assembler()
    with ThreadPoolExecutor(16) as pool:
        for title, around in (("the older ptxas", older), ("what files take", dict(os.environ))):
            wanted = itertools.product(KINDS, (16, 32), (4, 8))
            for each in [pool.submit(row, *one, around) for one in wanted]:
                print(f"{title}: {each.result()}", flush=True)


if __name__ == "__main__":
    main()
