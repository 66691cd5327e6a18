"""A peer that takes its process down, or is not compiled in time, leaves ours standing, and what
was found before."""

from __future__ import annotations

import os
import textwrap
from dataclasses import replace
from pathlib import Path

import pytest

from archc.bench.folders import own
from archc.bench.job import COMPILED, LAYER, LAYER_BACKWARD, Work
from archc.bench.markdown import shown_time
from archc.bench.processes import Limits, Outcome, measure, prepare, prepared
from archc.bench.report import recorded, report
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


def _put_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """Have processes run this text."""
    (tmp_path / "a_worker.py").write_text(textwrap.dedent(text))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    start = Workers.__init__

    def replaced(self: Workers, folder: Path, module: str, cache: Path | None = None) -> None:
        start(self, folder, "a_worker", cache)

    monkeypatch.setattr(Workers, "__init__", replaced)


def test_a_peer_that_takes_its_process_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _put_worker(tmp_path, monkeypatch, WORKER)
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


NAMING = """
    import json, sys
    mode, path, out = sys.argv[1:]
    sys.stdin.readline()
    names = ["ours", *json.load(open(path))["against"]]
    with open(out, "w") as file:
        file.write(json.dumps({"seconds": dict.fromkeys(names, [0.1])}) + chr(10))
"""


def test_two_runs_that_share_a_folder_do_not_mix_their_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _put_worker(tmp_path, monkeypatch, NAMING)
    jobs = [replace(JOB, folder=str(tmp_path / name), against=()) for name in ("one", "other")]
    others = [replace(job, against=("left",)) for job in jobs]
    for job in jobs:
        Path(job.folder).mkdir()
    first = measure(jobs, tmp_path, str, Limits(), first_calls=False)
    begun = next(first)  # its second process waits by now
    second = [*measure(others, tmp_path, str, Limits(), first_calls=False)]
    for found, names in ([begun, *first], ["ours"]), (second, ["ours", "left"]):
        rows = [row for outcome in found for row in outcome.rows]
        assert [[*row["seconds"]] for row in rows] == [names, names]


def test_first_calls_find_no_cache_of_an_earlier_run(tmp_path: Path) -> None:
    with own(tmp_path) as first:
        (first / "cache").mkdir()
        with own(tmp_path) as second:
            assert first != second
    with own(tmp_path) as third:
        assert third == first and not [*third.iterdir()]


SLOW = """
    import json, os, sys, time
    mode, path, *rest = sys.argv[1:]
    if mode == "fill" and rest[0] == "compile" and not os.path.exists("quick"):
        time.sleep(60)
    if mode == "measure":
        names = ["ours", *json.load(open(path))["against"]]
        with open(rest[0], "w") as file:
            row = {"what": "layer", "seconds": {name: [0.1, 0.1] for name in names}}
            file.write(json.dumps(row) + chr(10))
"""


def test_what_is_not_compiled_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest is measured, the row says so, and less time is not tried again."""
    _put_worker(tmp_path, monkeypatch, SLOW)
    monkeypatch.chdir(tmp_path)
    work = dict.fromkeys((LAYER, LAYER_BACKWARD), Work(1.0, 1.0))
    job = replace(
        JOB, folder=str(tmp_path), against=(COMPILED, "left"), device="cuda", what=(*work,),
        work=work,
    )  # fmt: skip
    said: list[str] = []

    def run(seconds: float) -> Outcome:
        limits = Limits(fill=seconds, cores=4)
        (found,) = measure([job], tmp_path, said.append, limits, first_calls=False)
        return found

    for seconds in (4.0, 3.0):
        found = run(seconds)
        assert {*next(row["seconds"] for row in found.rows if "seconds" in row)} == {"ours", "left"}
        late = [row for row in found.rows if "late" in row]
        assert [row["what"] for row in late] == [LAYER, LAYER_BACKWARD]
        assert {row["reason"] for row in late} == {"did not compile within 4 s"}
    assert said.count("compiling the candidates of 2 peers") == 1
    layer, both = recorded(report([found]).data()).cases
    assert shown_time(layer.entries[1]) == shown_time(both.entries[0]) == "not in 4 s"
    (tmp_path / "quick").touch()
    found = run(30.0)
    assert [{*row["seconds"]} for row in found.rows] == [{"ours", "left", COMPILED}]
    assert prepare([job], tmp_path, said.append, Limits(fill=30.0, cores=4)) == []
    assert (ready := prepared(job)) is not None and ready.against == job.against
