"""Printed tile programs beside the same kernels written by hand in Triton, on one GPU.

    python -m benchmarks.tile_programs -o benchmarks/results/tile_programs.json

Each program of tests/tile/programs.py is launched at a size that people use, held against float64,
and timed in turns with its twin of tests/tile/by_hand.py. A line is written as it comes. The aim is
a ratio of at most 1.05. `--tune` also tries blocks, warps and stages of the sweeps.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
import triton

from archc.bench.record import record
from tests.tile import by_hand
from tests.tile.cases import CASES, Case, Drawn, errors
from tests.tile.launched import compiled_in, launcher, programs

AIM, ROUNDS = 1.05, 5

SIZES: Mapping[str, dict[str, int]] = {
    "gated_rmsnorm": {"R": 524_288, "D": 128, "BLOCK_R": 32},
    "gated_rmsnorm_gradient": {"R": 524_288, "D": 128, "BLOCK_R": 16, "BLOCKS": 32},
    "short_convolution": {"B": 2, "T": 8192, "H": 32, "K": 128, "BLOCK_T": 32},
    "short_convolution_gradient": {"B": 2, "T": 8192, "H": 32, "K": 128, "BLOCK_T": 16},
    "capped_attention": {"B": 2, "T": 8192, "H": 32, "K": 128, "BLOCK_T": 128, "BLOCK_S": 64},
    "top_indices": {"R": 2048, "S": 65_536, "N": 64, "BLOCK_S": 1024},
    "cell": {"T": 1024, "B": 16, "D": 1024, "BLOCK_D": 16, "PART": 256},
    "delta_sweep": {"B": 2, "T": 8192, "H": 32, "K": 128, "V": 128, "BLOCK_V": 64},
    "delta_scan_gradient": {
        "B": 2, "chunks": 128, "H": 32, "K": 128, "V": 128, "C": 64, "BLOCK_V": 64,
    },
}  # fmt: skip

LIMIT: Mapping[str, float] = {"top_indices": 1e-9}
"""How far an output may be off in bfloat16; 1e-2 where nothing is said."""

TRIED = {
    "delta_sweep": {"BLOCK_V": (32, 64, 128), "num_warps": (1, 2, 4, 8), "num_stages": (2, 3, 4)},
    "delta_scan_gradient": {"BLOCK_V": (32, 64), "num_warps": (4, 8), "num_stages": (1, 2, 3)},
    "capped_attention": {"num_warps": (4, 8), "num_stages": (2, 3)},
    "cell": {"PART": (64, 128, 256), "num_warps": (4, 8)},
}


def bytes_moved(case: Case) -> int:
    """Every buffer once: no program can move less."""
    return sum(tensor.numel() * tensor.element_size() for tensor in case.tensors.values())


def ours(case: Case, options: Mapping[str, int]) -> Callable[[], Any]:
    """Launches the printed program."""
    constants = {**case.constants, **{n: v for n, v in options.items() if n in case.constants}}
    given = {n: v for n, v in options.items() if n not in case.constants}
    launch = launcher(case.program, case.tensors, case.sizes, constants, **given)
    return _from_zero(case, launch)


def theirs(case: Case) -> Callable[[], Any]:
    """Launches the kernel written by hand, with the same blocks."""
    kernel = getattr(by_hand, case.program.name)
    given: list[Any] = [case.tensors[buffer.name] for buffer in case.program.buffers]
    given += [case.sizes[symbol.name] for symbol in case.program.sizes]
    fixed = compiled_in(case.program, case.constants)
    options: dict[str, Any] = {"num_warps": case.program.warps, "num_stages": case.program.ahead}
    if case.program.cooperative:
        options["launch_cooperative_grid"] = True
    count = programs(case.program, case.sizes, case.constants)
    return _from_zero(case, lambda: kernel[(count,)](*given, **fixed, **options))


def _from_zero(case: Case, launch: Callable[[], Any]) -> Callable[[], Any]:
    """A launch whose barriers count from 0."""
    counter = case.tensors.get("counter")
    if counter is None:
        return launch
    return lambda: (counter.zero_(), launch())


def time_of(launch: Callable[[], Any]) -> float:
    """Milliseconds of a launch: the median of some tens."""
    return triton.testing.do_bench(launch, warmup=20, rep=80, return_mode="median")


def checked(case: Case, launch: Callable[[], Any]) -> float:
    """The largest error of an output, on memory that held no result before."""
    for name in case.expected:
        if name != "h":  # its first row is given
            case.tensors[name].fill_(-7)
    launch()
    torch.cuda.synchronize()
    return max(errors(case).values())


def row(name: str, case: Case) -> dict[str, Any]:
    """One program beside its twin."""
    printed, hand = ours(case, {}), theirs(case)
    off = {"printed": checked(case, printed), "by hand": checked(case, hand)}
    pairs = [(time_of(printed), time_of(hand)) for _ in range(ROUNDS)]
    ratios = [a / b for a, b in pairs]
    made, other = (statistics.median(times) for times in zip(*pairs, strict=True))
    moved = bytes_moved(case)
    return {
        "program": name, "sizes": SIZES[name], "printed_ms": made, "by_hand_ms": other,
        "ratio": statistics.median(ratios), "ratios": ratios, "errors": off, "bytes": moved,
        "bandwidth": moved / made * 1e3, "right": max(off.values()) < LIMIT.get(name, 1e-2),
    }  # fmt: skip


def tuned(name: str, case: Case) -> Iterator[dict[str, Any]]:
    """Other blocks, warps and stages of one program."""
    tried = TRIED[name]
    choices = [dict(zip(tried, each, strict=True)) for each in itertools.product(*tried.values())]

    def compiled(options: dict[str, int]) -> dict[str, Any]:
        launch = ours(case, options)
        try:
            launch()
            torch.cuda.synchronize()
        except triton.runtime.errors.OutOfResources as problem:
            return {"program": name, "options": options, "refused": str(problem)}
        return {"program": name, "options": options, "launch": launch}

    with ThreadPoolExecutor(16) as pool:
        made = list(pool.map(compiled, choices))
    for each in made:
        launch = each.pop("launch", None)
        if launch is not None:
            each |= {"error": checked(case, launch), "ms": time_of(launch)}
        yield each


def main() -> int:
    """Every program; 3 if one is wrong or slower than the aim."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("names", nargs="*", default=list(CASES))
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--tune", action="store_true", help="also try other settings")
    parser.add_argument("--commit", help="where this is a copy without git: what it is a copy of")
    given = parser.parse_args()
    data: dict[str, Any] = record(["python", "-m", "benchmarks.tile_programs", *sys.argv[1:]], None)
    data["commit"] = given.commit or data["commit"]
    data["versions"] |= {"torch": torch.__version__, "triton": triton.__version__}
    data |= {"device": torch.cuda.get_device_name(), "rows": [], "tried": []}
    missed = 0
    for name in given.names:
        case = CASES[name](Drawn(torch.bfloat16, "cuda"), **SIZES[name])
        found = row(name, case)
        data["rows"].append(found)
        missed += not (found["right"] and found["ratio"] <= AIM)
        print(
            f"{name:28} printed {found['printed_ms']:8.3f} ms, by hand {found['by_hand_ms']:8.3f},"
            f" ratio {found['ratio']:.3f}, {found['bandwidth'] / 1e12:.2f} TB/s, {found['errors']}",
            flush=True,
        )
        given.output.write_text(json.dumps(data, indent=1) + "\n")
        if given.tune and name in TRIED:
            for each in tuned(name, case):
                data["tried"].append(each)
                print("   ", {k: v for k, v in each.items() if k != "program"}, flush=True)
            given.output.write_text(json.dumps(data, indent=1) + "\n")
        del case
        torch.cuda.empty_cache()
    return 3 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
