"""Printed tile programs beside the same kernels written by hand in Triton, on one GPU.

    python -m benchmarks.tile_programs -o benchmarks/results/tile_programs.json

Each program of tests/tile/programs.py is launched at a size that people use, held against float64,
and timed in turns with its twin of tests/tile/by_hand.py. A line is written as it comes. The aim is
a ratio of at most 1.05. `--tune` also tries blocks, warps and stages of the sweeps.
"""

from __future__ import annotations

import itertools
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
import triton

from benchmarks.rows import Record, arguments, timed
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

Launch = Callable[[], Any]


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
    pairs = [(timed(printed), timed(hand)) for _ in range(ROUNDS)]
    ratios = [a / b for a, b in pairs]
    made, other = (statistics.median(times) for times in zip(*pairs, strict=True))
    moved = bytes_moved(case)
    return {
        "program": name, "sizes": SIZES[name], "printed_ms": made, "by_hand_ms": other,
        "ratio": statistics.median(ratios), "ratios": ratios, "errors": off, "bytes": moved,
        "bandwidth": moved / made * 1e3, "right": max(off.values()) < LIMIT.get(name, 1e-2),
    }  # fmt: skip


def launches(
    program: str, tried: Mapping[str, tuple[Any, ...]], launched: Callable[[dict[str, Any]], Launch]
) -> list[tuple[dict[str, Any], Launch | None]]:
    """A row for each choice of the options that are tried for a program, and its launch, compiled
    side by side; None where a GPU has no room for it."""
    choices = [dict(zip(tried, each, strict=True)) for each in itertools.product(*tried.values())]

    def compiled(options: dict[str, Any]) -> tuple[dict[str, Any], Launch | None]:
        row, launch = {"program": program, "options": options}, launched(options)
        try:
            launch()
            torch.cuda.synchronize()
        except triton.runtime.errors.OutOfResources as problem:
            return {**row, "refused": str(problem)}, None
        return row, launch

    with ThreadPoolExecutor(16) as pool:
        return list(pool.map(compiled, choices))


def tuned(name: str, case: Case) -> Iterator[dict[str, Any]]:
    """Other blocks, warps and stages of one program."""
    for each, launch in launches(name, TRIED[name], lambda options: ours(case, options)):
        if launch is not None:
            each |= {"error": checked(case, launch), "ms": timed(launch)}
        yield each


def main() -> int:
    """Every program; 3 if one is wrong or slower than the aim."""
    parser = arguments(__doc__, CASES)
    parser.add_argument("--tune", action="store_true", help="also try other settings")
    given = parser.parse_args()
    made = Record(given, tried=[])
    missed = 0
    for name in given.names:
        case = CASES[name](Drawn(torch.bfloat16, "cuda"), **SIZES[name])
        found = row(name, case)
        made.add(found)
        missed += not (found["right"] and found["ratio"] <= AIM)
        print(
            f"{name:28} printed {found['printed_ms']:8.3f} ms, by hand {found['by_hand_ms']:8.3f},"
            f" ratio {found['ratio']:.3f}, {found['bandwidth'] / 1e12:.2f} TB/s, {found['errors']}",
            flush=True,
        )
        if given.tune and name in TRIED:
            for each in tuned(name, case):
                made.data["tried"].append(each)
                print("   ", {k: v for k, v in each.items() if k != "program"}, flush=True)
            made.write()
        del case
        torch.cuda.empty_cache()
    return 3 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
