"""The kernels of the memories of bundled specs as machine code, without a GPU.

    python -m tests.backends.triton.compiled kda gla --dims 64 128 --workers 2

prints for each distinct kernel how long compiling took, and what it needs.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import lru_cache
from multiprocessing import get_context

import archc
from archc.ir.kernel import Kernel
from archc.schedule.memory import spills
from archc.schedule.program import Setting
from archc.show.planned import Conditions, plans_of
from tests.backends.triton.launches import (
    ROOM,
    Launch,
    MachineCode,
    distinct,
    machine_code,
    recorded,
)
from tests.gpu.cases import Case
from tests.gpu.measure import run
from tests.gpu.memories import SPECS, always, deciding, memories
from tests.gpu.values import values_for


@lru_cache(maxsize=8)
def launches_of(case: Case) -> tuple[Launch, ...]:
    """What the memories of a case launch, forward and backward."""
    found: list[Launch] = []
    for memory in memories(case.spec):
        with recorded() as launches, deciding(memory, always):
            run(memory, values_for(memory, case, "cpu"), case.chunk)
        found += launches
    return tuple(found)


def usual(spec: str, dim: int, dtype: str = "bfloat16", chunk: int = 64) -> Case:
    """A case with heads of one dim; more tokens than a chunk."""
    return Case(spec, dtype, chunk, K=dim, V=dim, T=chunk + 6)


def planned(case: Case) -> dict[str, tuple[Kernel, Setting]]:
    """The kernels that the plan of a case has, by name, and their setting."""
    names = {arg.name for arg in archc.load(case.spec).layer.args}
    sizes = {"d": 2 * case.K, "H": case.H, "K": case.K, "V": case.V, "D": case.K}
    spec = archc.load(case.spec, **{n: size for n, size in sizes.items() if n in names})
    wanted = Conditions(case.B, case.T, case.chunk, case.dtype)
    return {
        kernel.name: (kernel, Setting(plan.setting.sizes, case.dtype, part.widths))
        for plan in plans_of(spec.layer, wanted)
        for part in plan.parts
        for kernel in part.kernels.kernels
    }


def promised(case: Case) -> set[str]:
    """Kernels of which the plan says that what they hold fits into registers."""
    return {name for name, given in planned(case).items() if spills(*given) is None}


def machine_code_of(case: Case, key: str, capability: int = 90) -> MachineCode:
    """One launch of a case as machine code."""
    return machine_code(next(each for each in launches_of(case) if each.key == key), capability)


def all_machine_code(
    cases: Sequence[Case], workers: int | None = None, capability: int = 90
) -> Iterator[tuple[Case, MachineCode]]:
    """Every distinct kernel of some cases, in processes of their own, as each is done."""
    owners: dict[str, Case] = {}
    for case in cases:
        for launch in distinct(launches_of(case)):
            owners.setdefault(launch.key, case)
    context = get_context("spawn")
    with ProcessPoolExecutor(workers or os.cpu_count(), mp_context=context) as pool:
        waiting = {
            pool.submit(machine_code_of, case, key, capability): case
            for key, case in owners.items()
        }
        for each in as_completed(waiting):
            yield waiting[each], each.result()


def main() -> None:
    """A line for each kernel."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("specs", nargs="*", default=SPECS)
    parser.add_argument("--dims", nargs="*", type=int, default=[64, 128])
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--chunk", type=int, default=64)
    parser.add_argument("--workers", type=int, default=None)
    parser.add_argument("--capability", type=int, default=90, choices=ROOM)
    given = parser.parse_args()
    cases = [usual(s, dim, given.dtype, given.chunk) for s in given.specs for dim in given.dims]
    print("  dim  s warps shared registers spilled wgmma kernel")
    for case, made in all_machine_code(cases, given.workers, given.capability):
        products = "yes" if made.wgmma else "NO" if made.large else "-"
        print(
            f"{case.K:5}{made.seconds:5.1f}{made.warps:4}{made.shared:8}{made.registers:6}"
            f"{made.stack:9}{products:>6}  {made.name}", flush=True,
        )  # fmt: skip


if __name__ == "__main__":
    main()
