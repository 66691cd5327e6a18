"""Plan -> source text: the eager file, whose recurrences launch kernels on a GPU."""

from __future__ import annotations

from typing import Any

from archc.backends.eager import emit as eager
from archc.backends.triton.function import KernelFunction
from archc.backends.triton.schedule import Partition

from archc.ir.plan import Plan


def emit(plan: Plan, partition: Partition) -> str:
    """The whole file; `partition` cuts chunked forms into kernels."""

    def by_kernels(*given: Any) -> KernelFunction:
        return KernelFunction(*given, partition)

    return eager.emit(plan, by_kernels)
