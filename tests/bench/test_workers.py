"""Processes of a run: how each ended, and what is done with those that take too long."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from archc.bench.workers import Workers

WORKER = """
    import os, signal, sys, time
    mode, job, *rest = sys.argv[1:]
    print(mode, rest, os.path.basename(os.environ["TRITON_CACHE_DIR"]))
    if mode == "falls":
        print("what it said last", file=sys.stderr, flush=True)
        os.kill(os.getpid(), signal.SIGSEGV)
    if mode == "sleeps":
        time.sleep(60)
    if mode == "fails":
        sys.exit("no such thing")
"""


def test_how_processes_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a_worker.py").write_text(textwrap.dedent(WORKER))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    workers = Workers(tmp_path, "a_worker")
    modes = ("works", "falls", "fails", "sleeps")
    started = [workers.start(mode, tmp_path / "job.json", 7) for mode in modes]
    works, falls, fails, sleeps = workers.wait(started, 3.0)
    assert (works.code, works.out) == (0, "works ['7'] cache\n")
    assert falls.reason() == "its process was ended by signal 11: what it said last"
    assert fails.reason() == "no such thing"
    assert sleeps.code is None and sleeps.reason() == "stopped after its time"
