"""Token regions by themselves on one GPU: their programs forward and backward, beside the time that
their bytes take.

    python -m benchmarks.token_regions -o benchmarks/results/token_regions.json --tune

Each region is held against float64 on a short sequence, then timed on a long one. A row is written
as it comes. `--tune` tries blocks of tokens, warps and blocks a program.
"""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
import triton
from torch import Tensor

from archc.autodiff.reverse import gradient
from archc.lowering.token import EACH, Lowered, lower
from archc.lowering.values import Refusal
from archc.regions.gradient import gradient_of
from benchmarks.rows import Record, arguments
from tests.lowering.regions import Named, Trial, distance, trial
from tests.tile.launched import launcher

BANDWIDTH = 4.8e12
HEADS = {"d": 4096, "H": 32, "K": 128, "V": 128}
CASES: Mapping[str, tuple[str, str, dict[str, float]]] = {
    "conv_l2norm": ("kda", "q", {**HEADS, "r": 128}),
    "conv": ("kda", "v", {**HEADS, "r": 128}),
    "gate": ("kda", "log_alpha", {**HEADS, "r": 128}),
    "gated_rmsnorm": ("kda", "y_in", {**HEADS, "r": 128}),
    "rmsnorm": ("transformer", "h_in", {"d": 4096, "H": 32}),
    "residual_rmsnorm": ("transformer", "h", {"d": 4096, "H": 32}),
    "silu_mul": ("swiglu", "y_in", {"d": 4096, "f": 11008}),
}
"""A name, the spec and the region in it, and sizes."""
LONG, SHORT = 8192, 96
TRIED = {"elements": (128, 256, 1024, 2048, 4096), "warps": (1, 2, 4, 8), "each": (4, 16, 64)}


@dataclass(frozen=True)
class Pass:
    """The forward or the backward of a region, ready to be launched at a Trial's sizes."""

    trial: Trial
    made: Lowered
    given: Named
    made_in: Named

    def launch(self, warps: int) -> Any:
        """What launches it."""
        sizes, known = self.trial.launch(self.made)
        known["IO"] = "bf16"
        names = {**self.given, **self.made_in}
        tensors = {self.made.buffers[n]: x for n, x in names.items() if n in self.made.buffers}
        return launcher(self.made.program, tensors, sizes, known, num_warps=warps)

    @property
    def bytes(self) -> int:
        """Every tensor once."""
        names = {**self.given, **self.made_in}
        every = [x for n, x in names.items() if n in self.made.buffers]
        return sum(x.numel() * x.element_size() for x in every)


def settled(case: Trial, made: Lowered, elements: int, each: int) -> Trial:
    """The trial with tiles of so many elements, and so many blocks a program."""
    tile = 1
    for name in made.program.constants:
        axis = made.lengths.get(name)
        if axis is not None and axis.kind == "dim" and axis not in made.space.unrolled:
            tile *= int(replace(case, part=256).constant(made, name))
    return replace(case, block_t=max(1, min(64, elements // tile)), each=each, part=256)


def passes(case: Trial) -> dict[str, Lowered]:
    """The programs of a region, by what they are."""
    found = lower(case.region, gradient_of(case.region, gradient))
    assert not isinstance(found, Refusal), found
    return {"forward": found.values, "backward": found.gradient}


def room(case: Trial, made: Lowered, shapes: Mapping[str, torch.Size]) -> Named:
    """Memory for what a program makes."""
    found = Named()
    for name, shape in shapes.items():
        wide = torch.float32 if name in made.shares else torch.bfloat16
        full = (*case.fronts(made, name), *shape)
        found[name] = torch.full(full, torch.nan, device="cuda", dtype=wide)
    return found


def on_gpu(values: Mapping[str, Tensor]) -> Named:
    return {n: (x.bfloat16() if x.is_floating_point() else x).cuda() for n, x in values.items()}


def drawn(case: Trial) -> tuple[Named, Named]:
    """Inputs and cotangents of a long sequence, drawn on the GPU."""
    given = Named()
    for node in case.nodes():
        given[node.op.name] = case.drawn_on(node, "cuda")
    slopes = Named()
    for name, id in case.region.graph.outputs.items():
        slopes[f"d.{name}"] = case.drawn_on(case.region.graph[id], "cuda", whole=True)
    return given, slopes


def check(case: Trial) -> dict[str, float]:
    """The errors on a short sequence, in bfloat16."""
    torch.manual_seed(0)
    given, outputs, wanted = case.expected(torch.bfloat16)
    errors, every = {}, {**outputs, **wanted}
    given = on_gpu(given)
    for made in passes(case).values():
        at = settled(case, made, 2048, 2)
        there = room(at, made, shapes_of(made, every))
        Pass(at, made, given, there).launch(4)()
        for n in there:
            errors[n] = distance(at.total(made, n, there[n]).double().cpu(), every[n])
    return errors


def shapes_of(made: Lowered, every: Mapping[str, Tensor]) -> dict[str, torch.Size]:
    """The shapes of what a program writes."""
    wanted = {n: x.shape for n, x in every.items()}
    written = made.written
    return {n: shape for n, shape in wanted.items() if n in written}


def time_of(launch: Any) -> float:
    """Milliseconds of a launch: the median of some tens."""
    found: Any = triton.testing.do_bench(launch, warmup=10, rep=40, return_mode="median")
    return float(found)


def rows(name: str, tune: bool) -> Iterator[dict[str, Any]]:
    """The best setting of each pass of a region, and those that were tried."""
    spec, region, sizes = CASES[name]
    short = trial(spec, region, B=2, T=SHORT, **sizes)
    errors = check(short)
    case = trial(spec, region, B=2, T=LONG, **sizes)
    given, slopes = drawn(case)
    every = {n.removeprefix("d."): x for n, x in slopes.items()}
    every |= {f"d.{n}": x for n, x in given.items()}
    found = passes(case)
    for pass_, made in found.items():
        settings = itertools.product(*TRIED.values()) if tune else [(2048, 4, 8)]
        tried = []
        for elements, warps, each in settings:
            turns = EACH in {symbol.name for symbol in made.program.sizes}
            if each != TRIED["each"][0] and not turns:
                continue
            at = settled(case, made, elements, each)
            there = room(at, made, shapes_of(made, every))
            each_pass = Pass(at, made, {**given, **slopes}, there)
            launch = each_pass.launch(warps)
            launch()
            torch.cuda.synchronize()
            ms = time_of(launch)
            tried.append({"elements": elements, "block_t": at.block_t, "warps": warps,
                          "each": each, "ms": ms, "bytes": each_pass.bytes})  # fmt: skip
        best = min(tried, key=lambda row: row["ms"])
        floor = best["bytes"] / BANDWIDTH * 1e3
        yield {"region": name, "pass": pass_, "sizes": sizes, "errors": errors, **best,
               "floor_ms": floor, "over": best["ms"] / floor, "tried": tried}  # fmt: skip


def main() -> int:
    """Every region that is asked for; 3 if one is wrong."""
    parser = arguments(__doc__, CASES)
    parser.add_argument("--tune", action="store_true", help="try many settings")
    given = parser.parse_args()
    made = Record(given)
    wrong = 0
    for name in given.names:
        for found in rows(name, given.tune):
            wrong += max(found["errors"].values()) > 3e-2
            made.add(found)
            shown = {k: v for k, v in found.items() if k not in ("tried", "sizes")}
            print(json.dumps(shown), flush=True)
        torch.cuda.empty_cache()
    return 3 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
