"""What the interpreter is made to refuse, how it rounds, and that scans row by row are what they
are element by element: in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

KERNELS = """
import sys
import torch, triton, triton.language as tl
from triton.runtime.errors import InterpreterError
from tests.backends.triton.memory import guarded
from tests.backends.triton.narrow import rounding
from tests.backends.triton.quick import quick_scans

@triton.jit
def step(a, b, a_next, b_next):
    return a * a_next, b * a_next + b_next

@triton.jit
def scanned(x_p, y_p, AXIS: tl.constexpr, REVERSE: tl.constexpr):
    i = 4 * tl.arange(0, 8)[:, None] + tl.arange(0, 4)[None, :]
    x = tl.load(x_p + i)
    a, b = tl.associative_scan((x, x + 1), AXIS, step, reverse=REVERSE)
    tl.store(y_p + i, a)
    tl.store(y_p + 32 + i, b)

@triton.jit
def shifted(x_p, y_p, first, count):
    i = tl.arange(0, 4)
    tl.store(y_p + i, tl.load(x_p + first + i, first + i < count, 0))

@triton.jit
def everywhere(x_p, y_p, first, count):
    tl.store(y_p, tl.load(x_p))

@triton.jit
def again(x_p, y_p, first, count):
    tl.store(y_p, tl.load(x_p))
    tl.store(y_p + 1, tl.load(y_p))

@triton.jit
def squared(x_p, y_p, first, count):
    i = tl.arange(0, 4)
    x = tl.load(x_p + 4 * i[:, None] + i[None, :]).to(tl.bfloat16)
    tl.store(y_p + 4 * i[:, None] + i[None, :], tl.dot(x, x))

def outcome(kernel, grid, first, count, shape=(4,)):
    x, y = torch.arange(1.0, 1 + count), torch.empty(shape)
    try:
        with guarded(), rounding():
            kernel[(grid,)](x, y, first, count)
    except InterpreterError as error:
        return str(error)
    return y.tolist()

print(outcome(shifted, 1, 2, 4))
print(outcome(shifted, 1, -1, 4))
print(outcome(shifted, 1, 0, 4, (3,)))
print(outcome(everywhere, 2, 0, 4))
print(outcome(again, 1, 0, 4))
x, y = torch.randn(4, 4), torch.empty(4, 4)
with guarded(), rounding():
    squared[(1,)](x, y, 0, 0)
print(torch.equal(y, x.bfloat16().float() @ x.bfloat16().float()))
for axis, reverse in ((0, False), (0, True), (1, True)):
    x, y, quick = torch.randn(8, 4), torch.empty(64), torch.empty(64)
    scanned[(1,)](x, y, axis, reverse)
    with quick_scans():
        scanned[(1,)](x, quick, axis, reverse)
    print(torch.equal(y, quick))
"""


@pytest.mark.slow
def test_what_is_not_a_tensors_own_is_refused(tmp_path: Path) -> None:
    script = tmp_path / "kernels.py"
    script.write_text(KERNELS)
    done = subprocess.run(
        [sys.executable, str(script)],
        env={**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(Path(__file__).parents[3])},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    fits, before, past, twice, after, bits, *scans = done.stdout.splitlines()
    assert fits == "[3.0, 4.0, 0.0, 0.0]"
    assert "load of argument of shifted (4,) at element -1" in before
    assert "store of argument of shifted (3,) at element 3" in past
    assert "two programs store one element" in twice
    assert "which the same launch stores" in after
    assert bits == "True" and scans == ["True"] * 3
