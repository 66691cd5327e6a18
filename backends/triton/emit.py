"""Plan -> source text: the eager file, whose recurrences launch kernels on a GPU."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from archc.backends.eager import emit as eager
from archc.backends.eager.file import File, KernelWriters
from archc.backends.eager.joint_products import WeighedProduct, taken_elsewhere, weighed_product
from archc.backends.eager.recurrence import RecurrenceFunction
from archc.backends.eager.scope import Scope
from archc.backends.triton.fold import written as by_folds
from archc.backends.triton.function import KernelFunction
from archc.backends.triton.library import KernelOps
from archc.backends.triton.region import RegionFunction
from archc.backends.triton.schedule import Schedule
from archc.backends.triton.step_function import StepFunction, step_function
from archc.backends.triton.step_op import StepOp
from archc.backends.triton.walk_op import WalkOps

from archc.ir import layer as ir
from archc.ir.plan import Plan

TUNED = '''def use_tuned(path: str) -> None:
    """Launch the kernels of this file from now on as `archc tune` found best."""
    take_settings(path, globals())


if "ARCHC_TUNED" in os.environ:  # a file that `archc tune` wrote
    use_tuned(os.environ["ARCHC_TUNED"])'''


def code_of(plan: Plan, schedule: Schedule, ready: eager.Ready) -> eager.Code:
    """The code of a plan's layer; `schedule` says how recurrences become kernels, `ready` gives
    parts of layers their chunked forms."""
    return eager.code_of(plan, _writers(schedule), ready)


def kernels_in(file: File) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The lines of a file about its kernels, and about what stays in PyTorch."""
    regions = (f"{note}: a kernel, and one for its gradient" for note in file.token_notes)
    return (*file.notes, *file.attends, *regions), tuple(file.refused)


def emit_function(
    layer: ir.Layer, name: str, schedule: Schedule, ready: eager.Ready, whole: bool = False
) -> str:
    """A file with the function of a layer that has no parameters. What stands around a memory has
    kernels where the function is to be `whole`, and where there is no memory."""
    memory = any(isinstance(node.op, ir.Recurrence | ir.Attend) for node in layer.graph)
    writers = _writers(schedule)
    if memory and not whole:
        writers.by_regions = None
    return eager.emit_function(layer, name, writers, ready)


def _writers(schedule: Schedule) -> KernelWriters:
    """The writers of kernels, which are as a schedule says."""

    def by_kernels(scope: Scope, *given: Any, fused: bool) -> KernelFunction:
        scope.file.ending = [TUNED]
        return KernelFunction(scope, *given, schedule, fused)

    def by_steps(
        recurrence: RecurrenceFunction, eager_needs: Mapping[str, str]
    ) -> StepFunction | None:
        made = step_function(recurrence, eager_needs, schedule, WalkOps)
        if isinstance(made, str):
            recurrence.scope.file.refused.append(f"    {recurrence.name}: {made}")
            return None
        made.write_steps()
        if made.training is not None:
            made.once = StepOp(made.training, made)
            made.once.write()
        return made

    def by_ops(*given: Any) -> None:
        KernelOps(*given).write()

    def by_regions(
        scope: Scope, layer: ir.Layer, away: Collection[int]
    ) -> dict[int, RegionFunction | WeighedProduct]:
        params, taken = {id for id, _ in layer.params}, taken_elsewhere(scope, away)
        found = dict[int, RegionFunction | WeighedProduct]()
        for each in schedule.regions(layer, away):
            made, product = [*each.region.makes.values()], None
            if each.region.again:
                product = weighed_product(scope, made[0], params, taken)
            function = RegionFunction(scope, each, schedule.packed, later=product is not None)
            found |= dict.fromkeys(made, function)
            if product is not None:
                found[product.made[0]] = product
        return found

    return KernelWriters(by_kernels, by_steps, by_ops, by_folds(schedule.folds), by_regions)
