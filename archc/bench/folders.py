"""Folders that several runs share: what all read is made by one of them at a time, and what a run
writes for itself stands apart from that of the others."""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path


@contextmanager
def alone(place: Path) -> Iterator[None]:
    """A wait until no other process makes what stands at `place`; the lock ends with the process,
    however that ends."""
    place.parent.mkdir(parents=True, exist_ok=True)
    with place.with_name(f"{place.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def own(folder: Path) -> Iterator[Path]:
    """An empty folder for what one run alone reads: its orders, its logs, the caches of its first
    calls. A run by itself has `run_1`, another one beside it `run_2`; each stays until the next."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in count(1):
        with (folder / f"run_{number}.lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            place = folder / f"run_{number}"
            shutil.rmtree(place, ignore_errors=True)
            place.mkdir()
            yield place
            return
