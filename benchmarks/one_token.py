"""One token through a layer, as a pool steps: microseconds and launches in a CUDA graph, with each
product by itself and with those of one value side by side (`archc/side_by_side.py`).

    python -m benchmarks.one_token -o benchmarks/results/one_token.json

Layers in bfloat16, states in float32; the state is written over. `floor_us` is what parameters and
states take to be read, and states to be written, at what a copy reaches on an H200.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

import archc
from archc import slots as own_slots
from archc.side_by_side import SideBySide
from benchmarks.rows import Record, arguments, kernels

WIDE: dict[str, Any] = {"d": 2304, "H": 32, "K": 128, "V": 128}
ROWS: Mapping[str, tuple[str, int, Mapping[str, Any]]] = {
    f"{name} {batch}": (name, batch, sizes)
    for name, sizes in {"kda": {**WIDE, "r": 128}, "gated_delta": WIDE, "gla": WIDE}.items()
    for batch in (1, 64)
}
"""A layer, how many sequences, and its sizes."""

BANDWIDTH = 4.33e12
REPLAYS = 200


def step_of(layer: Any, batch: int) -> Callable[[], None]:
    """A token of each sequence, whose state takes the place of that before."""
    x = torch.randn(batch, 1, layer.d, device="cuda", dtype=torch.bfloat16)
    state = layer.initial_state(batch, 1, x.device, x.dtype)
    live = torch.ones(batch, device="cuda", dtype=torch.bool)

    def step() -> None:
        _, after = layer(x, state=state, return_state=True)
        own_slots.advance(state, after, live)

    return step


def replayed(step: Callable[[], None]) -> float:
    """Microseconds of a step in a CUDA graph."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    graph.replay()
    begin.record()
    for _ in range(REPLAYS):
        graph.replay()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / REPLAYS * 1000


@torch.no_grad()
def row(name: str, batch: int, sizes: Mapping[str, Any]) -> dict[str, Any]:
    """The numbers of one layer."""
    torch.manual_seed(0)
    model = archc.load(name).module(device="cuda", dtype=torch.bfloat16, **sizes)
    layer: Any = own_slots.in_slots(model)
    copies, step = SideBySide(layer), step_of(layer, batch)
    first = layer.initial_state(batch, 1, "cuda", torch.bfloat16)
    states = [x for _, _, x in own_slots.parts(first)]
    moved = sum(2 * x.nbytes for x in states) + sum(p.nbytes for p in layer.parameters())
    found: dict[str, Any] = {"row": f"{name} {batch}", **sizes, "floor_us": moved / BANDWIDTH * 1e6}
    found |= {"us": replayed(step), "kernels": kernels(step)}
    with copies.used():
        found |= {"side_by_side_us": replayed(step), "side_by_side_kernels": kernels(step)}
    for each in ("kernels", "side_by_side_kernels"):
        found[each.replace("kernels", "launches")] = sum(n for _, us, n in found[each] if us)
    found["tokens_s"] = batch / found["side_by_side_us"] * 1e6
    return found


def main() -> None:
    """Every row."""
    given = arguments(__doc__, ROWS).parse_args()
    kept = Record(given, by=("row",))
    for name in given.names:
        found = row(*ROWS[name])
        print({k: v for k, v in found.items() if not k.endswith("kernels")}, flush=True)
        kept.add(found)


if __name__ == "__main__":
    main()
