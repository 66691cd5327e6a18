"""The table of launches that the package has for a device, found by searches on it.

    python -m benchmarks.tuned -o backends/tuned/NVIDIA_H200.json                  # every row
    python -m benchmarks.tuned kda gla -o backends/tuned/NVIDIA_H200.json --cores 16
    python -m benchmarks.tuned kda -o FILE --shapes 2x8192x32x128 1x32768x4x128

bfloat16; shapes are batch x tokens x heads x dim of a head. Candidates of all rows are compiled and
held against float64 side by side, once for each dim of a head; then each row is timed alone at each
shape, and its better launches are written at once. Rows that the file has, of the same commit, are
left out: a search that was cut off goes on. `--join` puts other such files' rows into the file.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
import triton
from archc.backends.measured import kind_of_device

from archc.bench.job import BACKWARD, FORWARD, Job
from archc.bench.orders import Order, make
from archc.bench.record import record
from archc.bench.subject import Request
from archc.tune.candidates import Candidate, every
from archc.tune.search import Found, SearchFailed, checked, timed
from benchmarks.rows import arguments

ROWS = (
    "kda", "kda_bounded", "gla", "gated_delta", "delta", "linear_attention_simple", "retention",
    "mamba2", "rwkv7", "gated_delta_product", "mlstm", "mesa",
)  # fmt: skip
SIZES: Mapping[str, Sequence[str]] = {"mamba2": ("P",)}
"""Sizes that are the dim of a head, but for those that every row has."""

SHAPES = (
    "2x8192x32x128", "1x131072x8x128", "1x32768x4x128", "8x1024x8x64", "3x5000x24x96",
)  # fmt: skip
Shape = tuple[int, int, int, int]
Row = tuple[str, Shape]


def shape_of(text: str) -> Shape:
    """Batch, tokens, heads and dim of a head."""
    batch, tokens, heads, dim = (int(each) for each in text.split("x"))
    return batch, tokens, heads, dim


def made(rows: Sequence[Row], folder: Path, cores: int) -> list[Job]:
    """The jobs of rows."""
    orders = []
    for name, shape in rows:
        sizes = dict.fromkeys(SIZES.get(name, ()), shape[3])
        asked = Request((FORWARD, BACKWARD), (), (), None, "cuda", "bfloat16", 1.0, sizes)
        orders.append(Order(name, shape, asked))
    make(orders, folder, say, cores)
    return [order.job(folder) for order in orders]


def say(text: str) -> None:
    """Progress."""
    print(text, flush=True)


def joined(table: dict[str, Any], found: Found) -> dict[str, Any]:
    """A table with the better launches of a row in it."""
    kernels = {each["source"]: each for each in table["kernels"]}
    for (kernel, kind), candidate in found.settings.items():
        source = found.sources[kernel]
        each = kernels.setdefault(source, {"kernel": kernel, "source": source, "settings": {}})
        each["settings"][kind] = candidate.settings
    this = (found.job.title, found.job.shape)
    rows = [each for each in table["rows"] if row_of(each) != this]
    rows.append({
        "spec": found.job.title, "shape": found.job.shape, "faster": found.faster,
        "launches": len(found.settings), "commit": table["record"]["commit"],
        "left_out": found.left_out,
    })  # fmt: skip
    ordered = sorted(kernels.values(), key=lambda each: (each["kernel"], each["source"]))
    return {**table, "kernels": ordered, "rows": rows}


def row_of(each: Mapping[str, Any]) -> Row:
    """The row of a table: its spec and its shape."""
    batch, tokens, heads, dim = each["shape"]
    return each["spec"], (batch, tokens, heads, dim)


def with_rows_of(table: dict[str, Any], others: Sequence[Path]) -> dict[str, Any]:
    """A table with the rows and kernels of others in it, of the same device and Triton, and what
    each of them was made by."""
    for path in others:
        other = json.loads(path.read_text(encoding="utf-8"))
        if any(other[name] != table[name] for name in ("device", "triton")):
            raise ValueError(f"{path} is of {other['device']} and Triton {other['triton']}")
        kernels = {each["source"]: each for each in table["kernels"]}
        for each in other["kernels"]:
            settings = kernels.setdefault(each["source"], {**each, "settings": {}})["settings"]
            settings.update(each["settings"])
        rows = {row_of(each): each for each in [*table["rows"], *other["rows"]]}
        ordered = sorted(kernels.values(), key=lambda each: (each["kernel"], each["source"]))
        table = {**table, "kernels": ordered, "rows": [*rows.values()]}
    return table


def begun(path: Path, commit: str | None) -> dict[str, Any]:
    """The table that is there, if it is of this device and Triton, or an empty one."""
    kept = record(["python", "-m", "benchmarks.tuned", *sys.argv[1:]], None, commit)
    device = torch.cuda.get_device_name()
    fresh = {"device": device, "kind": kind_of_device(), "triton": triton.__version__}
    fresh["record"] = kept
    if path.exists():
        table = json.loads(path.read_text(encoding="utf-8"))
        if (table["device"], table["triton"]) == (device, triton.__version__):
            return {**table, **fresh}
    return {**fresh, "kernels": [], "rows": []}


def check(job: Job, candidates: Sequence[Candidate], seconds: float) -> tuple[Found, list[str]]:
    """What is right of a row, with one process for each candidate; nothing if the search fails."""
    found = Found(job)
    try:
        return found, checked(found, say, seconds, candidates, len(candidates) + 1)
    except SearchFailed as error:
        say(str(error))
        return found, []


def held(
    jobs: Sequence[Job], candidates: Sequence[Candidate], seconds: float, cores: int
) -> list[tuple[Found, list[str]]]:
    """What is right of each row: candidates are held against the oracle once for a spec and the dim
    of its heads, as many specs side by side as there are cores for."""
    firsts: dict[tuple[str, int], Job] = {}
    for job in jobs:
        firsts.setdefault((job.title, job.shape[3]), job)
    with ThreadPoolExecutor(max(1, cores // (len(candidates) + 1))) as pool:
        every = pool.map(lambda job: check(job, candidates, seconds), firsts.values())
        results = dict(zip(firsts, every, strict=True))
    rows = []
    for job in jobs:
        found, right = results[job.title, job.shape[3]]
        rows.append((Found(job, left_out=found.left_out), right))
    return rows


def searched(
    rows: Sequence[tuple[Found, list[str]]], path: Path, table: dict[str, Any], seconds: float
) -> None:
    """Time rows one by one, and write the table after each."""
    for found, right in rows:
        try:
            if right:
                timed(found, right, say, seconds)
                table = joined(table, found)
                write(table, path)
                shape = "x".join(map(str, found.job.shape))
                say(f"{found.job.title} {shape}: {len(found.settings)} launches, {found.faster}")
        except SearchFailed as error:
            say(str(error))


def write(table: Mapping[str, Any], path: Path) -> None:
    """The table's file."""
    path.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")


def main() -> int:
    """Every row that is asked for."""
    parser = arguments(__doc__, ROWS)
    parser.add_argument("--shapes", type=shape_of, nargs="*", default=[*map(shape_of, SHAPES)])
    parser.add_argument("--cores", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--warps", type=int, nargs="*", default=[4, 8])
    parser.add_argument("--stages", type=int, nargs="*", default=[1, 2, 3])
    parser.add_argument("--seconds", type=float, default=300.0, help="for each part of a search")
    parser.add_argument("--join", type=Path, nargs="*", help="put rows of these files into it")
    given = parser.parse_args()
    if given.join:
        first, *others = [each for each in (given.output, *given.join) if each.exists()]
        table = json.loads(first.read_text(encoding="utf-8"))
        write(with_rows_of(table, others), given.output)
        return 0
    table = begun(given.output, given.commit)
    commit = table["record"]["commit"]
    known = {row_of(each) for each in table["rows"] if each["commit"] == commit}
    rows = [(name, shape) for shape in given.shapes for name in given.names]
    with tempfile.TemporaryDirectory(prefix="archc-tuned-") as folder:
        jobs = made([row for row in rows if row not in known], Path(folder), given.cores)
        candidates = every(given.warps, given.stages)
        right = held(jobs, candidates, given.seconds, given.cores)
        searched(right, given.output, table, given.seconds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
