"""What products of matrices in 16 bits cost a memory, whoever does them: its eager chunked form in
float64, which rounds what it multiplies, and nothing else.

Some values ask for more than 16 bits. Where keys are alike and little is forgotten, a correction is
a small part of the sum that it is solved from: sums before it are rounded, and what is left shows
that. Where a solve answers, and nearly all is forgotten, what is left of the gradient of what was
remembered first comes from a few tokens, and shows how their answers were rounded. Every chunked
form multiplies such sums in the dtype of the data; no limit that was found with other values holds
for these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import ModuleType
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from tests.gpu.memories import Memory

EXACT = {"inverse_unit_lower", "conjugate_gradients"}
"""What kernels do in float32, whatever the data are: functions of a generated file."""


@contextmanager
def rounding(module: ModuleType, dtype: torch.dtype) -> Iterator[None]:
    """Products of matrices in a module's eager form are of operands rounded to a dtype."""
    state = {"rounds": True}
    matmul, einsum = Tensor.__matmul__, torch.einsum

    def near(x: Tensor) -> Tensor:
        return x.to(dtype).to(x.dtype) if state["rounds"] else x

    def product(a: Tensor, b: Tensor) -> Tensor:
        return matmul(near(a), near(b))

    def contracted(equation: str, *given: Tensor) -> Tensor:
        return einsum(equation, *(map(near, given) if _multiplies(equation) else given))

    def exactly(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any) -> Any:
            before, state["rounds"] = state["rounds"], False
            try:
                return function(*given)
            finally:
                state["rounds"] = before

        return call

    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(Tensor, "__matmul__", product))
        stack.enter_context(mock.patch.object(torch, "einsum", contracted))
        for name in EXACT & vars(module).keys():
            stack.enter_context(mock.patch.object(module, name, exactly(vars(module)[name])))
        yield


def _multiplies(equation: str) -> bool:
    """Whether a contraction is a product of matrices: both factors have an axis of their own."""
    factors = [set(each.strip()) for each in equation.partition("->")[0].split(",")]
    return len(factors) == 2 and bool(factors[0] - factors[1]) and bool(factors[1] - factors[0])


def solves(memory: Memory) -> bool:
    """Whether a memory solves equations by chunks, for corrections or for what it answers."""
    return memory.chunked and not EXACT.isdisjoint(vars(memory.module))


def raised(limit: float, cost: float) -> float:
    """The limit where rounding alone costs so much: a quarter more than that, as another order of
    the same products rounds otherwise; never more than four times the limit."""
    return max(limit, min(float(f"{1.25 * cost:.1e}"), 4 * limit))
