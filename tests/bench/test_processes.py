"""A peer that takes its process down leaves ours standing, and what was found before."""

from __future__ import annotations

import os
import textwrap
from dataclasses import replace
from pathlib import Path

import pytest

from archc.bench.processes import Limits, measure
from archc.bench.workers import Workers
from tests.bench.test_report import JOB

WORKER = """
    import json, os, signal, sys
    mode, path, out = sys.argv[1:]
    against = json.load(open(path))["against"]
    with open(out, "w") as file:
        for what in ("forward", "decode@64"):
            names = ["ours", *against]
            if what == "decode@64" and against:
                file.flush()
                os.kill(os.getpid(), signal.SIGABRT)
            row = {"what": what, "seconds": {name: [0.1, 0.1] for name in names}}
            file.write(json.dumps(row) + chr(10))
"""


def test_a_peer_that_takes_its_process_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a_falling_worker.py").write_text(textwrap.dedent(WORKER))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    start = Workers.__init__

    def replaced(self: Workers, folder: Path, module: str, cache: Path | None = None) -> None:
        start(self, folder, "a_falling_worker", cache)

    monkeypatch.setattr(Workers, "__init__", replaced)
    said: list[str] = []
    job = replace(JOB, folder=str(tmp_path))
    (found,) = measure([job], tmp_path, said.append, Limits(), first_calls=False)
    forward, remark, decode = found.rows
    assert {*forward["seconds"]} == {"ours", "left", "right"}
    assert remark == {
        "remark": "the rest is measured without left, right: its process was ended by signal 6"
    }
    assert decode == {"what": "decode@64", "seconds": {"ours": [0.1, 0.1]}}


def test_as_many_processes_compile_as_there_are_cores() -> None:
    assert Limits().cores == (os.cpu_count() or 1)
