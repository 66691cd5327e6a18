"""Generated files that launch tile programs, run in Triton's interpreter:

TRITON_INTERPRET=1 python -m tests.backends.triton.programs_in_files every

Prints each output's largest error against float64.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from archc.backends.assembly import assembled
from archc.backends.eager.file import File
from archc.backends.load import load
from archc.backends.triton.program_launch import ProgramLaunch, write_program
from archc.backends.writer import Writer

from archc.tile.compose import Composer, ceil_div
from archc.tile.language import Program
from tests.tile.programs import gated_rmsnorm


def scaled_rows(block: str = "BLOCK_R") -> Program:
    """y = 2 x + z for strided x and y, and a z that may be missing; a running product along c."""
    k = Composer("scaled_rows", "y = the running product of 2 x + z along c.")
    k.dtypes("IO")
    (rows,) = k.sizes("T", varying=True)
    (columns,) = k.sizes("C")
    BLOCK_R, BLOCK_C = k.lengths(block, "BLOCK_C")
    x = k.buffer("x", r=rows, c=columns, dtype="IO", strided=True)
    z = k.buffer("z", c=columns, dtype="IO", strided=True, optional=True)
    y = k.buffer("y", r=rows, c=columns, dtype="IO", strided=True)
    r = k.program("block", ceil_div(rows, BLOCK_R)) * BLOCK_R + k.iota("r", BLOCK_R)
    c = k.iota("c", BLOCK_C)
    inside = (r < rows, c < columns)
    value = 2.0 * k.load(x, r, c, where=inside)
    with k.branch(k.given(z)) as branch:
        branch.give(value + k.load(z, c, where=inside[1:]))
    with k.otherwise(branch) as missing:
        missing.give(value)
    made = branch.results[0].scan("product", "c")
    k.store(y, r, c, value=made.to("IO"), where=inside)
    return k.done()


def file_of(program: Program, launch: ProgramLaunch, arguments: str) -> tuple[Any, str]:
    """A function `run` that launches a program, in a generated file; and the text of that."""
    file, writer = File(), Writer()
    with writer.block(f"def run({arguments}):"):
        write_program(file, writer, program, launch)
    file.sections.append(writer.text())
    text = assembled(file)
    module: Any = load(text, "run")
    return module.run, text


ROWS = ProgramLaunch(
    {"x": "x", "z": "z", "y": "y.T"},
    {"T": "x.shape[0]", "C": "x.shape[1]"},
    {"BLOCK_R": "4", "BLOCK_C": "8", "IO": "x.dtype"},
)


def rows(dtype: torch.dtype, given: bool) -> float:
    """The strided program, of transposed memory."""
    run, _ = file_of(scaled_rows(), ROWS, "x, z, y")
    x = torch.randn(7, 10).T.to(dtype)
    z = torch.randn(2, 7, dtype=dtype)[1] if given else None
    y = torch.full((7, 10), float("nan"), dtype=dtype)
    run(x, z, y)
    exact = 2 * x.double() + (0 if z is None else z.double())
    return float((y.T.double() - exact.cumprod(1)).abs().max() / exact.cumprod(1).abs().max())


def rmsnorm() -> float:
    """A program with contiguous buffers and a real number, which is given as an int."""
    launch = ProgramLaunch(
        {name: name for name in ("x", "g", "y", "gain")},
        {"R": "x.shape[0]", "D": "x.shape[1]", "EPS": "eps"},
        {"BLOCK_R": "max(1, 2)", "BLOCK_D": "64", "IO": "x.dtype"},
    )
    run, _ = file_of(gated_rmsnorm(), launch, "x, g, y, gain, eps")
    x, g, gain, y = torch.randn(5, 33), torch.randn(5, 33), torch.randn(33), torch.empty(5, 33)
    run(x, g, y, gain, 1)
    a, b = x.double(), g.double()
    wanted = a / (a.square().mean(1, keepdim=True) + 1).sqrt() * gain.double()
    wanted = wanted * torch.nn.functional.silu(b)
    return float((y.double() - wanted).abs().max() / wanted.abs().max())


CASES: dict[str, Callable[[], float]] = {
    "rows": lambda: rows(torch.float32, True),
    "rows without z": lambda: rows(torch.float32, False),
    "narrow rows": lambda: rows(torch.bfloat16, True),
    "rmsnorm": rmsnorm,
}

if __name__ == "__main__":
    torch.manual_seed(0)
    for name, run in CASES.items():
        print(f"{name}: {run():.1e}")
