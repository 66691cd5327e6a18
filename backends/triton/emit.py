"""Plan -> source text: the eager file, whose recurrences launch kernels on a GPU."""

from __future__ import annotations

from typing import Any

from archc.backends.eager import emit as eager
from archc.backends.triton.function import KernelFunction
from archc.backends.triton.schedule import Schedule

from archc.ir.plan import Plan


def emit(plan: Plan, schedule: Schedule) -> str:
    """The whole file; `schedule` cuts chunked forms into kernels."""

    def by_kernels(*given: Any) -> KernelFunction:
        return KernelFunction(*given, schedule)

    return eager.emit(plan, by_kernels)
