"""Walks in segments beside walks of whole sequences, on a GPU, where heads are few.

    python -m tests.gpu.segments                        # B 1, T 65536, D 128, 4 heads
    python -m tests.gpu.segments gla --heads 2 4 8 --lengths 8 16 32 64 128

A line for each: milliseconds of a forward that keeps nothing and of one with its backward, whole,
in segments as the file decides, and of other lengths that are asked for; how far results in
segments are from whole ones, as a root mean square, and from a second run, which must be 0.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from tests.gpu.cases import Case
from tests.gpu.measure import run
from tests.gpu.memories import Memory, memories
from tests.gpu.values import values_for

SPECS = ("gla", "linear_attention_simple", "mlstm", "kda")
RULE, RUNS = "chunks_of_segment", 7


@contextmanager
def of_length(memory: Memory, length: int | None) -> Iterator[None]:
    """Walks in segments of so many chunks; 0: whole; None: as the file decides."""
    module: Any = memory.module
    own = getattr(module, RULE, None)
    if own is not None and length is not None:
        setattr(module, RULE, lambda *given: length)
    try:
        yield
    finally:
        if own is not None:
            setattr(module, RULE, own)


def milliseconds(work: Callable[[], Any]) -> float:
    """The median of some runs, after two that do not count."""
    times = []
    for _ in range(RUNS + 2):
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        work()
        last.record()
        last.synchronize()
        times.append(first.elapsed_time(last))
    return statistics.median(times[2:])


def both_times(memory: Memory, values: Mapping[str, Any], length: int | None) -> str:
    """`forward / forward and backward`."""

    def forward() -> None:
        with torch.no_grad():
            memory({n: values[n] for n in (*memory.axes, *memory.numbers)}, 64)

    with of_length(memory, length):
        alone = milliseconds(forward)
        both = milliseconds(lambda: run(memory, values, 64))
    return f"{alone:.3f} / {both:.3f}"


def apart(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> tuple[float, str]:
    """The largest root mean square of a difference, against that of the value, and of which."""
    found = []
    for name, x in one.items():
        a, b = x.double(), other[name].double()
        off = (a - b).square().mean().sqrt() / a.square().mean().sqrt().clamp(min=1e-12)
        found.append((float("inf") if off.isnan() else float(off), name))
    return max(found)


def measured(spec: str, heads: int, tokens: int, lengths: Sequence[int]) -> Iterator[str]:
    """Lines of one spec."""
    (memory,) = memories(spec)
    case = Case(spec, H=heads, K=128, V=128, B=1, T=tokens, gate=2e4, wide_gates=False)
    values = values_for(memory, case, "cuda")
    with of_length(memory, 0):
        whole = run(memory, values, 64)
    split, again = run(memory, values, 64), run(memory, values, 64)
    (off, what), (moved, _) = apart(whole, split), apart(split, again)
    title = f"{spec:24} H {heads} T {tokens}"
    yield f"{title}: off by {off:.1e} ({what}), again {moved}"
    times = {"whole": 0, "as decided": None} | {str(length): length for length in lengths}
    for name, length in times.items():
        yield f"{title}: {name:>10}: {both_times(memory, values, length)} ms"


def main() -> None:
    """Print every line as it comes."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("specs", nargs="*", default=SPECS)
    parser.add_argument("--heads", nargs="*", type=int, default=[4])
    parser.add_argument("--tokens", nargs="*", type=int, default=[65536])
    parser.add_argument("--lengths", nargs="*", type=int, default=[])
    given = parser.parse_args()
    for spec in given.specs:
        for heads in given.heads:
            for tokens in given.tokens:
                for line in measured(spec, heads, tokens, given.lengths):
                    print(line, flush=True)


if __name__ == "__main__":
    main()
