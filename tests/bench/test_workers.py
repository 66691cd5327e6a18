"""Processes of a run: how each ended, and what is done with those that take too long."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from archc.bench.workers import Done, Workers

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


def test_so_many_side_by_side_and_one_that_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a_worker.py").write_text(
        textwrap.dedent(WORKER) + "if mode == 'waits':\n    print(repr(sys.stdin.readline()))\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    workers = Workers(tmp_path, "a_worker", tmp_path / "shared")
    tasks = [(mode, tmp_path / "job.json") for mode in ("works", "fails", "sleeps", "works")]
    told: list[int] = []
    works, fails, sleeps, late = workers.side_by_side(tasks, 1, 4.0, lambda n, _: told.append(n))
    assert told == [0, 1]
    assert (works.out, fails.code) == ("works [] shared\n", 1)
    assert sleeps.code is None and late == Done(None, "", "")
    held = [workers.start("waits", tmp_path / "job.json", held=True) for _ in range(2)]
    workers.release(held[0])
    (first,) = workers.wait(held[:1], 10.0)
    assert first.out.endswith("'\\n'\n")
    assert held[1][0].poll() is None
    held[1][0].kill()
