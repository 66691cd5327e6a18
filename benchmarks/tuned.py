"""The table of launches that the package has for a device, found by searches on it.

    python -m benchmarks.tuned -o backends/tuned/NVIDIA_H200.json                  # every row
    python -m benchmarks.tuned kda gla -o backends/tuned/NVIDIA_H200.json --cores 16

bfloat16, B 2, T 8192, 32 heads of 128. Candidates of all rows are compiled and held against float64
side by side; then each row is timed alone, and its better launches are written at once. Rows that
the file has, of the same commit, are left out: a search that was cut off goes on.
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
    "kda", "gla", "gated_delta", "delta", "linear_attention_simple", "mamba2", "rwkv7",
    "gated_delta_product", "mlstm", "mesa",
)  # fmt: skip
SIZES: Mapping[str, Mapping[str, Any]] = {"mamba2": {"P": 128}}
SHAPE = (2, 8192, 32, 128)
SECONDS = 150.0
"""How long a part of a search may take."""


def made(names: Sequence[str], folder: Path, cores: int) -> dict[str, Job]:
    """The jobs, by row."""
    orders = {}
    for name in names:
        sizes = SIZES.get(name, {})
        asked = Request((FORWARD, BACKWARD), (), (), None, "cuda", "bfloat16", 1.0, sizes)
        orders[name] = Order(name, SHAPE, asked)
    make(orders.values(), folder, say, cores)
    return {name: order.job(folder) for name, order in orders.items()}


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
    rows = [each for each in table["rows"] if each["spec"] != found.job.title]
    rows.append({
        "spec": found.job.title, "shape": found.job.shape, "faster": found.faster,
        "commit": table["record"]["commit"], "left_out": found.left_out,
    })  # fmt: skip
    ordered = sorted(kernels.values(), key=lambda each: (each["kernel"], each["source"]))
    return {**table, "kernels": ordered, "rows": rows}


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


def check(job: Job, candidates: Sequence[Candidate]) -> tuple[Found, list[str]]:
    """What is right of a row, with one process for each candidate; nothing if the search fails."""
    found = Found(job)
    try:
        return found, checked(found, say, SECONDS, candidates, len(candidates) + 1)
    except SearchFailed as error:
        say(str(error))
        return found, []


def searched(rows: Sequence[tuple[Found, list[str]]], path: Path, table: dict[str, Any]) -> None:
    """Time rows one by one, and write the table after each."""
    for found, right in rows:
        try:
            if right:
                timed(found, right, say, SECONDS)
                table = joined(table, found)
                path.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")
                say(f"{found.job.title}: {len(found.settings)} launches, {found.faster}")
        except SearchFailed as error:
            say(str(error))


def main() -> int:
    """Every row that is asked for."""
    parser = arguments(__doc__, ROWS)
    parser.add_argument("--cores", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--warps", type=int, nargs="*", default=[4, 8])
    parser.add_argument("--stages", type=int, nargs="*", default=[1, 2, 3])
    given = parser.parse_args()
    table = begun(given.output, given.commit)
    commit = table["record"]["commit"]
    known = {each["spec"] for each in table["rows"] if each["commit"] == commit}
    candidates = every(given.warps, given.stages)
    with tempfile.TemporaryDirectory(prefix="archc-tuned-") as folder:
        names = [name for name in given.names if name not in known]
        jobs = made(names, Path(folder), given.cores)
        with ThreadPoolExecutor(max(1, given.cores // (len(candidates) + 1))) as pool:
            rows = [*pool.map(lambda job: check(job, candidates), jobs.values())]
        searched(rows, given.output, table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
