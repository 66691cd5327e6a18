"""How fast one token is done on pools of states, on a GPU: time against the memory it must move.

    python benchmarks/decode.py [-o benchmarks/results/decode.json] [--sweep]

H = 32, K = V = 128, inputs in bfloat16, states in float32. Every call is replayed in a CUDA graph;
`call` is what a call takes from Python. `--sweep` tries other blocks of V and numbers of warps.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from archc.backends.load import load
from torch import Tensor

import archc
from archc.compile import in_kernels, lowered
from archc.ir.plan import Plan

HEADS, KEY, VALUE = 32, 128, 128
BATCHES = (1, 64, 256)
BANDWIDTH = 4.33e12
"""Bytes a second that a copy reaches on an H200."""

REPLAYS, CALLS = 20, 10
"""How many replays are timed, each of so many calls."""


def file_of(spec: str) -> ModuleType:
    """The file of a bundled spec, with kernels."""
    return load(in_kernels(Plan(lowered(archc.load(spec).layer))), f"{spec}_decode")


def tokens(batch: int) -> dict[str, Tensor]:
    """Random inputs of a token: unit keys and queries, gates as layers have them."""
    torch.manual_seed(0)
    shape, kind = (batch, 1, HEADS), {"device": "cuda", "dtype": torch.bfloat16}
    unit = torch.nn.functional.normalize
    return {
        "q": unit(torch.randn(*shape, KEY, **kind), dim=-1),
        "k": unit(torch.randn(*shape, KEY, **kind), dim=-1),
        "v": torch.randn(*shape, VALUE, **kind),
        "log_alpha": -torch.nn.functional.softplus(torch.randn(*shape, KEY, **kind)),
        "beta": torch.sigmoid(torch.randn(*shape, **kind)),
    }


def replayed(run: Callable[[], Any]) -> float:
    """Seconds of a call inside a CUDA graph: the median of several replays."""
    for _ in range(3):
        run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(CALLS):
            run()
    times = []
    for _ in range(REPLAYS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / 1000 / CALLS)
    return statistics.median(times)


def called(run: Callable[[], Any]) -> float:
    """Seconds of a call from Python, of many one after the other."""
    run()
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(200):
        run()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / 200


@torch.no_grad()
def measured(module: ModuleType, batch: int) -> dict[str, Any]:
    """One size: microseconds, and the share of what a copy of the states would take."""
    pool = torch.randn(batch + 8, HEADS, KEY, VALUE, device="cuda")
    index = torch.randperm(batch + 8, device="cuda")[:batch].int()
    given = [*tokens(batch).values()]

    def run() -> Any:
        return module.kda_memory_decode(*given, pool, index)

    moved = 2 * batch * HEADS * KEY * VALUE * 4 + sum(2 * x.numel() for x in given)
    graph = replayed(run)
    return {
        "batch": batch, "us": 1e6 * graph, "call": 1e6 * called(run),
        "floor": 1e6 * moved / BANDWIDTH, "share": moved / BANDWIDTH / graph,
    }  # fmt: skip


def sweep(module: ModuleType) -> Iterator[dict[str, Any]]:
    """Other blocks of V and numbers of warps."""
    part, warps = module.step_part, module.step_warps
    for block in (8, 16, 32, 64, 128):
        for count in (1, 2, 4, 8):
            if not 16 <= block * KEY / (32 * count) <= 64:
                continue
            module.step_part = lambda *sizes, block=block: block
            module.step_warps = lambda numbers, most, count=count: count
            vars(module.kda_memory_step).pop("known_calls", None)
            yield {"block": block, "warps": count, **measured(module, 64)}
    module.step_part, module.step_warps = part, warps
    vars(module.kda_memory_step).pop("known_calls", None)


def cells(spec: str, heads: int, dim: int, count: int) -> dict[str, Any]:
    """A sequential cell, 16 sequences: microseconds a token by its kernels and by the eager loop,
    alone and with the gradient."""
    module, width = file_of(spec), heads * dim
    sizes = {"d": width, "H": heads} if spec == "slstm" else {"d": width}
    layer = getattr(module, spec.upper())(**sizes, device="cuda", dtype=torch.bfloat16)
    x, found = torch.randn(16, count, width, device="cuda", dtype=torch.bfloat16), {}

    def alone(x: Tensor) -> None:
        with torch.no_grad():
            layer(x)

    def both(x: Tensor) -> None:
        layer(x).float().sum().backward()

    decide = module.on_gpu
    for name, run in (("forward", alone), ("both", both)):
        found[f"{name}_kernel"] = 1e6 * seconds(lambda run=run: run(x)) / count
        module.on_gpu = lambda *given: False
        found[f"{name}_loop"] = 1e6 * seconds(lambda run=run: run(x[:, :64])) / 64
        module.on_gpu = decide
    return {"spec": spec, "heads": heads, "dim": dim, **found}


def seconds(run: Callable[[], Any]) -> float:
    """Seconds of a run, the best of three after one that does not count."""
    times = []
    for _ in range(4):
        torch.cuda.synchronize()
        start = time.perf_counter()
        run()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return min(times[1:])


def main() -> None:
    """Measure, print a line for each case, and keep them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--sweep", action="store_true")
    given = parser.parse_args()
    module, rows = file_of("kda"), list[dict[str, Any]]()
    for batch in BATCHES:
        rows.append(measured(module, batch))
        print(rows[-1], flush=True)
    for row in sweep(module) if given.sweep else ():
        rows.append(row)
        print(row, flush=True)
    for spec, heads, dim in [(s, h, d) for s, h in (("slstm", 4), ("lstm", 1)) for d in (64, 128)]:
        rows.append(cells(spec, heads, dim, 1024))
        print(rows[-1], flush=True)
    if given.output is not None:
        machine = {"device": torch.cuda.get_device_name(), "torch": torch.__version__}
        given.output.write_text(json.dumps({**machine, "rows": rows}, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
