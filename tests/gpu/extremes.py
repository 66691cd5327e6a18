"""What is asked of kernels beside right numbers: very long sequences, more elements than 32 bits
count, and memory that runs out in the gradient.

    python -m tests.gpu.extremes long gla kda
    python -m tests.gpu.extremes memory gla -o memory.json
    python -m tests.gpu.extremes wide linear_attention_simple

Prints a line for each check and spec, and ends with 1 if one is wrong.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tests import served
from tests.gpu import memories
from tests.gpu.cases import Case
from tests.gpu.measure import OUTPUT, launched, part_of, relative, run
from tests.gpu.memories import Memory, always, deciding, never
from tests.gpu.values import values_for

MILLION = 1 << 20
PIECE = 1 << 16

Found = dict[str, Any]
"""What a check came to: errors by name, and `wrong`, what is wrong with it."""


def pieces_of(memory: Memory, values: Mapping[str, Any], length: int) -> Iterator[dict[str, Any]]:
    """The same tokens, so many at a time."""
    along = {n: axes.index("T") for n, axes in memory.axes.items() if "T" in axes}
    tokens = next(values[n].shape[at] for n, at in along.items())
    for first in range(0, tokens, length):
        count = min(length, tokens - first)
        yield {**values, **{n: values[n].narrow(at, first, count) for n, at in along.items()}}


def last_state(memory: Memory, values: Mapping[str, Any], length: int, chunk: int) -> list[Tensor]:
    """The states after all tokens, piece by piece."""
    carried: dict[str, Tensor] = {}
    with torch.no_grad():
        for piece in pieces_of(memory, values, length):
            carried = dict(zip(memory.states, memory({**piece, **carried}, chunk)[1:], strict=True))
    return [*carried.values()]


def long(case: Case, device: str, piece: int = PIECE) -> Found:
    """A long sequence: every number is one, and the last states are those of the recurrence run in
    pieces, and those of float64."""
    found: Found = {"wrong": []}
    for memory in memories.memories(case.spec):
        values = values_for(memory, case, device)
        made = launched(memory, case, values, device)
        for name, x in made.items():
            if not torch.isfinite(x).all():
                found["wrong"].append(f"{name} has what is no number")
        with deciding(memory, always):
            parts = last_state(memory, values, piece, case.chunk)
        wide = {n: x.double() if _real(x) else x for n, x in values.items()}
        with deciding(memory, never):
            wanted = last_state(memory, wide, piece, case.chunk)
        for name, part, want in zip(memory.states, parts, wanted, strict=True):
            found[f"{name} in pieces"] = relative(part.double(), made[name])
            found[f"{name} in float64"] = relative(want, made[name])
    found["wrong"] += [n for n, x in found.items() if isinstance(x, float) and not x < OUTPUT]
    return found


def _real(x: Any) -> bool:
    return isinstance(x, Tensor) and x.is_floating_point()


def wide(case: Case, device: str) -> Found:
    """More elements than 32 bits count: the last head is as if it were alone."""
    found: Found = {"wrong": []}
    for memory in memories.memories(case.spec):
        values = values_for(memory, case, device)
        with torch.no_grad(), deciding(memory, always):
            made = memory(values, case.chunk)
            part = part_of(memory, {n: values[n] for n in memory.axes})
            alone = memory({**values, **part}, case.chunk)
        names = ["o", *memory.states]
        made_part = part_of(memory, dict(zip(names, made, strict=True)))
        for name, x in zip(names, alone, strict=True):
            found[name] = relative(x.double(), made_part[name])
    found["elements"] = case.B * case.T * case.H * case.K
    found["wrong"] += [n for n, x in found.items() if isinstance(x, float) and x != 0]
    return found


@contextmanager
def room_for(buffers: int) -> Iterator[list[int]]:
    """Memory runs out after so many new buffers; how many were asked for."""
    new, asked = torch.empty, [0]

    def made(*shape: int, **kind: Any) -> Tensor:
        asked[0] += 1
        if asked[0] > buffers:
            raise torch.OutOfMemoryError("CUDA out of memory, as a test has it")
        return new(*shape, **kind)

    torch.empty = made
    try:
        yield asked
    finally:
        torch.empty = new


def memory_runs_out(case: Case, device: str) -> Found:
    """Memory that runs out in the gradient, early, in between and late: what entered is as it was,
    and the gradient comes out when there is room again, to the bit."""
    found: Found = {"wrong": []}
    for memory in memories.memories(case.spec):
        values = values_for(memory, case, device)
        with deciding(memory, always):
            wanted = run(memory, values, case.chunk)
            found["wrong"] += _out_of_memory(memory, values, case.chunk, device)
            again = run(memory, values, case.chunk)
        found["wrong"] += [f"later {n}" for n, x in again.items() if not _same(x, wanted[n])]
        found[memory.name] = "done"
    return found


def _out_of_memory(
    memory: Memory, values: Mapping[str, Any], chunk: int, device: str
) -> Iterator[str]:
    """What is wrong with a forward of which the gradient fails three times."""
    leaves = {n: values[n].detach().requires_grad_() for n in memory.axes if _real(values[n])}
    made = memory({**values, **leaves}, chunk)
    kept = {name: x.detach().clone() for name, x in leaves.items()}
    outputs = [y.detach().clone() for y in made]
    arriving = [torch.ones_like(y) for y in made]

    def gradients() -> list[Tensor | None]:
        wanted = [*leaves.values()]
        asked = {"retain_graph": True, "allow_unused": True}
        return [*torch.autograd.grad(made, wanted, arriving, **asked)]

    with room_for(1 << 30) as asked:
        clean = gradients()
    for room in sorted({0, asked[0] // 2, asked[0] - 1}):
        yield from _failing(gradients, room, device)
        yield from (n for n, x in leaves.items() if not _same(x.detach(), kept[n]))
        yield from (f"output {i}" for i, y in enumerate(made) if not _same(y, outputs[i]))
        again = gradients()
        if not all(_same(x, y) for x, y in zip(again, clean, strict=True)):
            yield f"the gradient after room for {room} buffers differs"


def _failing(gradients: Callable[[], Any], room: int, device: str) -> list[str]:
    """An error is told, whether buffers are counted or the allocator has no more to give."""
    wrong = []
    try:
        with room_for(room):
            gradients()
        wrong.append(f"room for {room} buffers was enough")
    except torch.OutOfMemoryError:
        pass
    if device == "cuda":
        torch.cuda.empty_cache()
        whole = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(torch.cuda.memory_reserved() / whole)
        taken = list(_what_is_left(device))
        try:
            gradients()
            wrong.append("the allocator had room left")
        except torch.OutOfMemoryError:
            pass
        finally:
            taken.clear()
            torch.cuda.set_per_process_memory_fraction(1.0)
    return wrong


def _what_is_left(device: str) -> Iterator[Tensor]:
    """All that the allocator has to give, down to pieces of 512 bytes."""
    size = 1 << 30
    while size >= 512:
        try:
            yield torch.empty(size, dtype=torch.uint8, device=device)
        except torch.OutOfMemoryError:
            size //= 2


def _same(x: Tensor | None, y: Tensor | None) -> bool:
    if x is None or y is None:
        return x is y
    return torch.equal(x.nan_to_num(7.0), y.nan_to_num(7.0))


CHECKS: dict[str, tuple[Callable[[Case, str], Found], Case]] = {
    "long": (long, Case("", H=1, B=1, T=MILLION)),
    "wide": (wide, Case("", H=33, B=1, T=MILLION)),
    "memory": (memory_runs_out, Case("", H=8, B=4, T=1024)),
}


SMALL = Case("", "float32", 16, H=2, K=8, V=12, B=1, T=17)
"""What is large enough for Triton's interpreter."""


def check(what: str, spec: str, device: str) -> Found:
    """One check of one spec, in this process."""
    function, case = CHECKS[what]
    return function(replace(SMALL if device == "cpu" else case, spec=spec), device)


def apart(what: str, spec: str, device: str) -> Found:
    """The same in a process of its own, under Triton's interpreter where there is no GPU."""
    module, given = "tests.gpu.extremes", [what, spec, "--here", "--device", device]
    if device == "cpu":
        done = served.run(module, *given)
    else:
        command, root = [sys.executable, "-m", module, *given], Path(__file__).parents[2]
        done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    lines = done.stdout.splitlines()
    return json.loads(lines[-1]) if lines else {"wrong": [done.stderr[-600:]]}


def main() -> int:
    """A line for each spec."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("what", choices=CHECKS)
    parser.add_argument("specs", nargs="*", default=memories.SPECS)
    parser.add_argument("--here", action="store_true", help="in this process: one spec")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("-o", "--output", type=Path)
    given = parser.parse_args()
    if given.here:
        print(json.dumps(check(given.what, given.specs[0], given.device)))
        return 0
    found = {}
    for spec in given.specs:
        found[spec] = apart(given.what, spec, given.device)
        print(f"{given.what} {spec}: {found[spec]}", flush=True)
    if given.output is not None:
        given.output.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return int(any(each["wrong"] for each in found.values()))


if __name__ == "__main__":
    sys.exit(main())
