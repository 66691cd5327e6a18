"""Functions of Triton that generated kernels share, under its interpreter, against formulas in
float64: prints what is computed, and the largest error against the largest value.

    TRITON_INTERPRET=1 python -m tests.backends.triton.interpreted_pieces every
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from archc.backends.load import load
from archc.backends.triton import elementwise
from torch import Tensor

from archc.functions.definitions import FUNCTIONS as DEFINED
from archc.ir.meaning_ops import FUNCTIONS

Found = Iterator[tuple[str, Tensor, Tensor]]


def filled(kernel: Any, shape: tuple[int, ...], *given: Any, dtype: Any = torch.float32) -> Tensor:
    """What a kernel stores behind its last tensor."""
    tensors = [x for x in given if isinstance(x, Tensor)]
    rest = given[len(tensors) :]
    made = torch.full(shape, -1, dtype=dtype)
    kernel[(1,)](*tensors, made, *rest)
    return made


FUNCTION = """
from archc.runtime.optional import tl, triton
from archc.runtime.tiles import (
    log_1_plus_exp, logistic, real_power, real_quotient, real_remainder
)

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


def small() -> Found:
    """Functions that are small at large negative or positive numbers, by how far off they are of
    themselves."""
    x = torch.linspace(-20.0, 20.0, 64)
    for name, sign in (("softplus", 1), ("logsigmoid", -1)):
        text, given = elementwise.TEXT[name]("x"), sign * x
        kernel = load(FUNCTION.format(before="pass", text=text), name).function
        found = filled(kernel, (64,), given, given, given)
        wanted = FUNCTIONS[name](given.double())
        yield f"{name} of itself", found / wanted, torch.ones_like(wanted)


def main() -> None:
    torch.manual_seed(0)
    for what, found, wanted in (*functions(), *small()):
        exact = wanted.double()
        error = (found.double() - exact).abs().max() / exact.abs().max().clamp(min=1e-9)
        print(f"{what}: {float(error):.1e}")


if __name__ == "__main__":
    main()
