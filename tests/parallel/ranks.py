"""Checks that run on two processes of gloo, forked from one that has imported torch: a line of JSON
for each, with what went wrong on either.

    python -m tests.parallel.ranks FOLDER [NAME...]
"""

from __future__ import annotations

import faulthandler
import json
import os
import sys
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from archc.parallel import early, overlapped

RANKS = 2
ENDING = "a rank that ends"
"""A check after which one process is gone: it is done by two of its own."""

FAILS = (
    ArithmeticError, AssertionError, AttributeError, LookupError, NameError, RuntimeError,
    TypeError, ValueError, pytest.fail.Exception,
)  # fmt: skip
"""How a check fails."""

LIMIT = 1000
"""Seconds that a process may take for all of its checks."""


def mesh_of(name: str) -> DeviceMesh:
    """All processes along one dim."""
    return init_device_mesh("cpu", (RANKS,), mesh_dim_names=(name,))


def in_child(rank: int, folder: Path, checks: dict[str, Callable[[], None]]) -> None:
    """The checks on one process; their ends stand in a file of its own."""
    torch.set_num_threads(1)
    early.LARGE = 8  # of the small parameters here some are summed alone, some together
    overlapped.LARGE = 8  # and attends are computed in parts of their heads
    faulthandler.dump_traceback_later(LIMIT, exit=True)
    store = dist.FileStore(str(folder / "store"), RANKS)
    dist.init_process_group(
        "gloo", store=store, rank=rank, world_size=RANKS, timeout=timedelta(seconds=30)
    )
    with (folder / f"{rank}.jsonl").open("w", encoding="utf-8") as out:
        for name, check in checks.items():
            try:
                check()
                why = ""
            except FAILS:  # it is told, and the next one is done
                why = traceback.format_exc()
            print(json.dumps({"check": name, "rank": rank, "why": why}), file=out, flush=True)
    if ENDING not in checks:
        dist.barrier()
        dist.destroy_process_group()


def run(folder: Path, checks: dict[str, Callable[[], None]]) -> None:
    """The checks on all processes."""
    children = []
    for rank in range(RANKS):
        pid = os.fork()
        if not pid:
            status = 1
            try:
                in_child(rank, folder, checks)
                status = 0
            finally:
                sys.stdout.flush()
                os._exit(status)
        children.append(pid)
    for pid in children:
        os.waitpid(pid, 0)


if __name__ == "__main__":
    from tests.parallel.checks import CHECKS, compile_all

    given = sys.argv[2:] or [name for name, (_, slow) in CHECKS.items() if not slow]
    compile_all(given)
    for number, wanted in enumerate(([n for n in given if n != ENDING], [ENDING])):
        place = Path(sys.argv[1]) / str(number)
        place.mkdir()
        run(place, {name: CHECKS[name][0] for name in wanted if name in given})
