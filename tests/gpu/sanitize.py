"""Small runs of kernels, forward and backward, for NVIDIA's compute-sanitizer to watch.

    python -m tests.gpu.sanitize                  # memcheck and racecheck of one spec of each class
    python -m tests.gpu.sanitize --tools memcheck --specs gla kda
    python -m tests.gpu.sanitize --tools memcheck initcheck racecheck synccheck

Each spec and tool is a process of its own; what is read or written out of bounds, raced for or read
before it is written makes it fail. Memory is not cached, so that the end of a tensor is the end of
its memory.

Several threads may hold one element of a tile, and Triton lets all of them write it to shared
memory by one instruction. Where it is a sum, they may have added it up with other roundings:
racecheck tells of such writes too, byte by byte. They are counted apart, and are no race: the
threads are lanes of one warp, or the numbers that they write differ in their lowest byte alone.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path

import torch

from tests.gpu.cases import Case
from tests.gpu.measure import launched
from tests.gpu.memories import memories
from tests.gpu.record import where
from tests.gpu.values import values_for

FOUND = 9
"""What a watched process ends with where something was found."""

WRITES = re.compile(
    r"Potential (?P<kind>\w+) hazard detected at __shared__ 0x(?P<byte>\w+) .*\n"
    r".*?(?P<one>Write|Read) Thread \((?P<first>\d+),0,0\) at (?P<here>\S+).*\n"
    r".*?(?P<other>Write|Read) Thread \((?P<second>\d+),0,0\) at (?P<there>\S+)"
)
"""What racecheck says of two threads that touch the same bytes."""

WARP, NUMBER = 32, 4
"""Lanes of a warp, and bytes of a float32 number, the lowest of which comes first."""

TOLD = {
    "initcheck": ["--track-unused-memory", "no", "--print-limit", "5"],
    "racecheck": ["--racecheck-report", "hazard", "--print-limit", "100000"],
}
"""What a tool is asked for in words of its own."""

Row = dict[str, object]
ROOT = Path(__file__).parents[2]
CLASSES = (
    "linear_attention_simple", "gla", "gated_delta", "kda", "gated_delta_product", "rwkv7", "mamba",
    "ssm", "mlstm", "mesa", "slstm",
)  # fmt: skip
"""A spec of each class: no decay, one for each channel, corrections without and with it, several
steps a token, two vectors, diagonal scans, constant matrices, a maximum, solves, cells."""


def cases(spec: str) -> list[Case]:
    """Small ones: a chunk that is not full, dims that do not fill a tile, and some that do."""
    ragged = Case(spec, "float32", 16, H=2, K=20, V=36, B=1, T=37)
    return [ragged, Case(spec, chunk=64, H=1, K=64, V=64, B=1, T=150, holes=0.1)]


def once(case: Case) -> None:
    """The launches of a case; no numbers are compared."""
    for memory in memories(case.spec):
        found = launched(memory, case, values_for(memory, case, "cuda"), "cuda")
        torch.cuda.synchronize()
        if not all(torch.isfinite(x).all() for name, x in found.items() if name == "o"):
            raise AssertionError(f"{memory.name}: an output is no number")


def _once(spec: str) -> list[str]:
    return [sys.executable, "-m", "tests.gpu.sanitize", "--once", spec]


def compiled(spec: str) -> None:
    """Run a spec's cases unwatched, so that Triton's cache has their kernels: what it does to
    compile them need not be watched."""
    subprocess.run(_once(spec), cwd=ROOT, capture_output=True, check=False)


def watched(spec: str, tool: str) -> tuple[str, str, bool, str]:
    """Spec, tool, whether nothing was found, and what the tool says in the end."""
    program = shutil.which("compute-sanitizer")
    if program is None:
        return spec, tool, False, "there is no compute-sanitizer"
    own = _once(spec)
    told = TOLD.get(tool, ["--print-limit", "5"])
    command = [program, "--tool", tool, "--error-exitcode", str(FOUND), *told, *own]
    environment = {**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    found = [line for line in done.stdout.splitlines() if re.search(r"SUMMARY|Invalid|race", line)]
    last = " | ".join(dict.fromkeys(found[:2] + found[-1:])) or "said nothing"
    if done.returncode not in (0, FOUND):
        last += f" | the program ended with {done.returncode}: {done.stderr.strip()[-300:]}"
    right = done.returncode == 0
    if tool == "racecheck" and done.returncode == FOUND:
        races, alike = raced(done.stdout)
        right = not races and alike > 0
        last = f"{len(races)} races, {alike} bytes of sums that several threads hold"
        last += "".join(f" | {text}" for text in races[:3])
    return spec, tool, right, last


def raced(said: str) -> tuple[list[str], int]:
    """The pairs of threads that race, and how many write one sum at once."""
    pairs = list(WRITES.finditer(said))
    assert len(pairs) == said.count("hazard detected"), "racecheck says it in other words"
    races = [
        " ".join(each.groups()) for each in pairs
        if each["kind"] != "WAW" or each["here"] != each["there"]
        or (int(each["first"]) // WARP != int(each["second"]) // WARP
            and int(each["byte"], 16) % NUMBER)
    ]  # fmt: skip
    return races, len(pairs) - len(races)


def all_watched(
    specs: Sequence[str], tools: Sequence[str], workers: int
) -> list[dict[str, object]]:
    """Every spec with every tool, several at a time."""
    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(compiled, specs))
        waiting = [pool.submit(watched, spec, tool) for tool in tools for spec in specs]
        rows = []
        for each in waiting:
            spec, tool, right, last = each.result()
            print(f"{'ok   ' if right else 'WRONG'} {tool:10} {spec:26} {last}", flush=True)
            rows.append({"spec": spec, "tool": tool, "right": right, "said": last})
    return rows


def main() -> int:
    """A line for each spec and tool."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--specs", nargs="*", default=CLASSES)
    parser.add_argument("--tools", nargs="*", default=["memcheck", "racecheck"])
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--once", help="the launches of one spec, in this process")
    parser.add_argument("--commit", help="what was run, where git does not know")
    parser.add_argument("-o", "--output", type=Path)
    given = parser.parse_args()
    if given.once:
        for case in cases(given.once):
            once(case)
        return 0
    rows = all_watched(given.specs, given.tools, given.workers)
    if given.output is not None:
        runs = [asdict(replace(case, spec="")) for case in cases("")]
        found = {**where("cuda"), "cases": runs, "rows": rows}
        found["commit"] = given.commit or found["commit"]
        given.output.write_text(json.dumps(found, indent=1) + "\n")
    return int(not all(row["right"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
