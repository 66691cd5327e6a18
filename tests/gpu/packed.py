"""Packed sequences on a GPU: every memory against each sequence alone in float64, compiled too; and
how long 16,384 tokens of 8 sequences take, packed and as one padded batch.

    python -m tests.gpu.packed check kda gla
    python -m tests.gpu.packed time kda gla
    python -m tests.gpu.packed compile kda

Prints a line for each spec and dtype, and ends with 1 if one is wrong.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor

from tests.gpu.cases import Case
from tests.gpu.memories import SPECS, Memory, deciding, memories, never
from tests.gpu.values import values_for

DEVICE = "cuda"
LENGTHS = (0, 1, 63, 64, 65, 300, 0, 17)
UNEVEN = (300, 6000, 1200, 64, 2500, 4000, 1300, 1020)
LIMITS = {"float32": 1e-3, "bfloat16": 4e-2}
"""The largest error against the largest value; bfloat16 rounds what enters the exact run too."""


def borders_of(lengths: Sequence[int]) -> list[int]:
    """Where sequences begin and end."""
    return [0, *accumulate(lengths)]


def packed_values(memory: Memory, case: Case, lengths: Sequence[int]) -> dict[str, Any]:
    """Values of packed tokens in a batch of 1, and a state for each sequence."""
    tokens = values_for(memory, Case(**{**vars(case), "B": 1, "T": sum(lengths)}), DEVICE)
    states = values_for(memory, Case(**{**vars(case), "B": len(lengths), "T": 1}), DEVICE)
    return {name: (states if name in memory.states else tokens)[name] for name in memory.axes}


def with_gradients(
    values: Mapping[str, Any], run: Callable[[dict[str, Any]], Sequence[Tensor]]
) -> dict[str, Tensor]:
    """Results by number, and the gradients of what is real for one sum of them."""
    given = {
        n: x.detach().requires_grad_() if x.is_floating_point() else x for n, x in values.items()
    }
    made = run(given)
    torch.manual_seed(3)
    weights = [torch.randn(y.shape, device=DEVICE, dtype=torch.float64) for y in made]
    loss = sum((y.double() * w).sum() for y, w in zip(made, weights, strict=True))
    real = {n: x for n, x in given.items() if x.requires_grad}
    found = torch.autograd.grad(loss, list(real.values()), allow_unused=True)
    pairs = zip(real, found, strict=True)
    outputs = {f"output {i}": y.detach() for i, y in enumerate(made)}
    return outputs | {f"d {n}": d for n, d in pairs if d is not None}


def each_alone(memory: Memory, lengths: Sequence[int]) -> Callable[..., list[Tensor]]:
    """Every sequence by itself, without kernels."""
    along = {n: axes.index("T") for n, axes in memory.axes.items() if "T" in axes}

    def run(values: dict[str, Any]) -> list[Tensor]:
        parts = []
        for i, (first, end) in enumerate(pairwise(borders_of(lengths))):
            own = {n: values[n].narrow(at, first, end - first) for n, at in along.items()}
            own |= {n: values[n][i : i + 1] for n in memory.states}
            with deciding(memory, never):
                parts.append(memory({**values, **own}, 64))
        count = len(parts[0]) - len(memory.states)
        each = enumerate(zip(*parts, strict=True))
        return [torch.cat(ys, 1 if place < count else 0) for place, ys in each]

    return run


def at_once(memory: Memory, borders: Tensor) -> Callable[..., Sequence[Tensor]]:
    """All sequences in one run."""
    function = getattr(memory.module, memory.name)

    def run(values: dict[str, Any]) -> Sequence[Tensor]:
        made = function(*values.values(), 64, cu_seqlens=borders)
        return made if isinstance(made, tuple) else (made,)

    return run


def error(found: Tensor, wanted: Tensor) -> float:
    """The largest difference, against the largest value."""
    if not found.isfinite().all():
        return float("inf")
    return float((found.double() - wanted).abs().max() / wanted.abs().max().clamp(min=1e-6))


def double(values: Mapping[str, Any]) -> dict[str, Any]:
    """The same values in float64."""
    return {n: x.double() if x.is_floating_point() else x for n, x in values.items()}


def chunked(specs: Sequence[str]) -> Iterator[tuple[str, Memory]]:
    """The memories of specs that have chunks and need no numbers."""
    for spec in specs:
        yield from ((spec, m) for m in memories(spec) if m.chunked and not m.numbers)


def check(specs: Sequence[str]) -> int:
    """Results and gradients of every memory; how many are wrong."""
    wrong = 0
    borders = torch.tensor(borders_of(LENGTHS), device=DEVICE, dtype=torch.int32)
    for spec, memory in chunked(specs):
        for dtype, limit in LIMITS.items():
            case = Case(spec=spec, dtype=dtype, H=2, K=60, V=64)
            try:
                values = packed_values(memory, case, LENGTHS)
                wanted = with_gradients(double(values), each_alone(memory, LENGTHS))
                found = with_gradients(values, at_once(memory, borders))
            except (RuntimeError, ValueError, TypeError) as reason:
                traceback.print_exc()
                print(f"{spec:24} {dtype:9} RAISED {str(reason)[:200]}", flush=True)
                wrong += 1
                continue
            errors = {name: error(found[name], value) for name, value in wanted.items()}
            off = {n: f"{e:.1e}" for n, e in errors.items() if not e < limit}
            wrong += bool(off)
            print(f"{spec:24} {dtype:9} {max(errors.values()):.1e} {off or ''}", flush=True)
    return wrong


def compiled(specs: Sequence[str]) -> int:
    """One graph of torch.compile for packed sequences of other lengths; how many are wrong."""
    wrong = 0
    for spec, memory in chunked(specs):
        torch._dynamo.reset()
        function = torch.compile(getattr(memory.module, memory.name), fullgraph=True)
        for lengths in ((40, 90), (64, 1, 200), (5, 70, 30, 12)):
            borders = torch.tensor(borders_of(lengths), device=DEVICE)
            values = packed_values(memory, Case(spec=spec), lengths)
            with torch.no_grad():
                wanted = at_once(memory, borders)(values)
                found = function(*values.values(), 64, cu_seqlens=borders)
            pairs = zip(found, wanted, strict=True)
            same = all(torch.equal(one, other) for one, other in pairs)
            wrong += not same
            print(f"{spec:24} compiled, {len(lengths)} sequences: {'same' if same else 'WRONG'}")
    return wrong


def median_ms(run: Callable[[], Any]) -> float:
    """Milliseconds of a run, the median of 9 after 3 that do not count."""
    times = []
    for _ in range(12):
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        first.record()
        run()
        last.record()
        torch.cuda.synchronize()
        times.append(first.elapsed_time(last))
    return sorted(times[3:])[4]


def timed(specs: Sequence[str]) -> int:
    """Forward, and forward with backward: packed, in one padded batch, and one run of as many
    tokens of one sequence."""
    borders = torch.tensor(borders_of(UNEVEN), device=DEVICE, dtype=torch.int32)
    for spec, memory in chunked(specs):
        case = Case(spec=spec, H=32, K=128, V=128)
        shapes = {"padded": (len(UNEVEN), max(UNEVEN)), "one sequence": (1, sum(UNEVEN))}
        runs = {"packed": (packed_values(memory, case, UNEVEN), at_once(memory, borders))}
        for name, (batch, tokens) in shapes.items():
            values = values_for(memory, Case(**{**vars(case), "B": batch, "T": tokens}), DEVICE)
            runs[name] = (values, lambda values, memory=memory: memory(values, 64))
        for name, (values, run) in runs.items():
            given = {
                n: x.requires_grad_() if x.is_floating_point() else x for n, x in values.items()
            }

            def both(run: Any = run, given: Any = given) -> None:
                sum(y.float().sum() for y in run(given)).backward()

            def alone(run: Any = run, given: Any = given) -> None:
                with torch.no_grad():
                    run(given)

            made = f"{median_ms(alone):8.3f} ms forward {median_ms(both):8.3f} ms with backward"
            print(f"{spec:24} {name:14} {made}", flush=True)
    return 0


def main(arguments: list[str]) -> None:
    """What is asked, of the specs named, or of all."""
    what, *specs = arguments
    done = {"check": check, "time": timed, "compile": compiled}[what](specs or SPECS)
    sys.exit(1 if done else 0)


if __name__ == "__main__":
    main(sys.argv[1:])
