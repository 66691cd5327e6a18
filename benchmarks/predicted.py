"""Times of every kernel of recurrences on one GPU, beside what the plan expects of each.

    python -m benchmarks.predicted kda gla -o predicted.json
    python -m benchmarks.predicted --of predicted.json            # what today's plan expects

Times are of a profile, by the names of kernels, with moderate gates, forward and backward and
without gradients. Registers, spills and shared memory are those of the machine code that ran.
`--of` takes the times of a file that was measured, and needs no GPU.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

import archc
from archc.bench.record import record
from archc.show.planned import Conditions, Planned, plans_of

SIZES = (
    {"B": 2, "T": 8192, "H": 32, "K": 128, "V": 128},
    {"B": 8, "T": 4096, "H": 16, "K": 64, "V": 64},
)
"""The first are those of plans; no walk of either goes in segments."""

TURNS, WARM = 10, 3
NEAR = 0.3
"""How far from what was measured an expected time may be."""


def expected(spec: str, sizes: Mapping[str, int]) -> dict[str, dict[str, Any]]:
    """Of each kernel the time that its plan expects, and what that is made of."""
    own = {each.name for each in archc.load(spec).layer.args}
    layer = archc.load(spec, **{name: size for name, size in sizes.items() if name in own}).layer
    plans = plans_of(layer, Conditions(B=sizes["B"], T=sizes["T"]), alone=True)
    return dict(each for plan in plans for each in _expected(plan))


def _expected(plan: Planned) -> Iterator[tuple[str, dict[str, Any]]]:
    for part in plan.parts:
        for cost in part.cost.kernels:
            yield cost.name, {"expected": cost.expected * 1e6, "floor": cost.floor * 1e6}


def measured(spec: str, sizes: Mapping[str, int]) -> dict[str, dict[str, Any]]:
    """Of each kernel of a spec's memory the microseconds that it ran, and what a program has."""
    from tests.gpu.cases import Case
    from tests.gpu.measure import run
    from tests.gpu.memories import memories
    from tests.gpu.values import values_for

    (memory, *_) = memories(spec)
    values = values_for(memory, Case(spec, gate=10.0, **sizes), "cuda")
    given = {name: values[name] for name in (*memory.axes, *memory.numbers)}

    def inference() -> None:
        with torch.no_grad():
            memory(given, 64)

    found = _of_a_call(inference) | _of_a_call(lambda: run(memory, values, 64))
    return {name: {**row, **_machine(memory.module, name)} for name, row in found.items()}


def with_twins(
    plan: Mapping[str, Mapping[str, Any]], times: Mapping[str, Mapping[str, Any]]
) -> dict[str, dict[str, Any]]:
    """The plan, with what it expects of a gradient's kernel added to the forward's of the same
    text, which is launched for both in a call."""
    found = {name: dict(row) for name, row in plan.items()}
    ran = {name for name, row in times.items() if row.get("launches", 0) > 1}
    for name in found.keys() - times.keys():
        own = name.replace("_gradient_kernels_", "_kernels_")
        if own != name and own in ran and own in found:
            found[own]["expected"] += plan[name]["expected"]
    return found


def _of_a_call(call: Callable[[], object]) -> dict[str, dict[str, float]]:
    """Of each kernel the microseconds that it runs in a call, all of its launches together, and how
    many these are."""
    for _ in range(WARM):
        call()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(TURNS):
            call()
        torch.cuda.synchronize()
    events = [e for e in profile.key_averages() if e.device_time_total and "kernels_" in e.key]
    return {
        e.key: {"time": e.device_time_total / TURNS, "launches": e.count // TURNS} for e in events
    }


def _machine(module: Any, name: str) -> dict[str, int]:
    """Registers, spilled bytes, shared memory and warps of the machine code of a kernel."""
    kernel = getattr(module, name, None)
    for cache, *_ in getattr(kernel, "device_caches", {}).values():
        for code in cache.values():
            return {
                "registers": code.n_regs, "spilled": code.n_spills,
                "shared": code.metadata.shared, "warps": code.metadata.num_warps,
            }  # fmt: skip
    return {}


def table(rows: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """A line a kernel that is expected and was measured, the slowest first."""
    both = {name: row for name, row in rows.items() if "time" in row and "expected" in row}
    for name, row in sorted(both.items(), key=lambda each: -each[1]["time"]):
        ratio = row["expected"] / row["time"]
        far = "" if abs(ratio - 1) <= NEAR else "  far"
        yield f"{name:56} {row['time']:10.1f} {row['expected']:10.1f} {ratio:6.2f}{far}"


def main() -> int:
    """Every spec at all sizes."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("specs", nargs="*")
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--of", type=Path, help="times that were measured")
    parser.add_argument("--commit", help="where this is a copy without git: what it is a copy of")
    given = parser.parse_args()
    data: dict[str, Any] = record(["python", "-m", "benchmarks.predicted", *sys.argv[1:]], None)
    data["commit"] = given.commit or data["commit"]
    known = json.loads(given.of.read_text(encoding="utf-8")) if given.of else None
    data |= {"versions": data["versions"] | {"torch": torch.__version__}, "runs": []}
    wanted = known["runs"] if known else [
        {"spec": spec, "sizes": sizes} for spec in given.specs for sizes in SIZES
    ]  # fmt: skip
    for run in wanted:
        plan = expected(run["spec"], run["sizes"])
        times = run["kernels"] if known else measured(run["spec"], run["sizes"])
        plan = with_twins(plan, times)
        rows = {name: {**times.get(name, {}), **plan.get(name, {})} for name in {**times, **plan}}
        data["runs"].append({"spec": run["spec"], "sizes": run["sizes"], "kernels": rows})
        print("\n".join([f"{run['spec']} {run['sizes']}", *table(rows)]), flush=True)
        if given.output:
            given.output.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
