"""Plan -> source text: the eager file, whose recurrences launch kernels on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from archc.backends.eager import emit as eager
from archc.backends.eager.fold import FoldFunction
from archc.backends.triton.function import KernelFunction
from archc.backends.triton.lines import NotInKernel
from archc.backends.triton.schedule import Schedule
from archc.backends.triton.step_function import StepFunction

from archc.ir import layer as ir
from archc.ir.plan import Plan


def emit(plan: Plan, schedule: Schedule) -> str:
    """The whole file; `schedule` says how recurrences become kernels."""
    return eager.emit(plan, *_writers(schedule))


def emit_function(layer: ir.Layer, name: str, schedule: Schedule) -> str:
    """A file with the function of a layer that has no parameters."""
    return eager.emit_function(layer, name, *_writers(schedule))


def _writers(schedule: Schedule) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Who writes the functions whose kernels do chunks, and those whose kernels walk tokens."""

    def by_kernels(*given: Any) -> KernelFunction:
        return KernelFunction(*given, schedule)

    def by_steps(fold: FoldFunction, eager_needs: Mapping[str, str]) -> StepFunction | None:
        try:
            made = StepFunction(fold, eager_needs, schedule)
        except NotInKernel as reason:
            fold.scope.file.refused.append(f"    {fold.name}: {reason}")
            return None
        made.write_steps()
        return made

    return by_kernels, by_steps
