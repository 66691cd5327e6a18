"""The tables of the pages are those of the records."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from archc.bench.job import BACKWARD, FORWARD, Work
from archc.bench.processes import Outcome
from archc.bench.report import report
from benchmarks.tables import main, shapes, usual, written
from tests.bench.test_report import JOB, rows


def test_pages_show_what_is_recorded() -> None:
    assert main(["--check"]) == 0


def test_a_row_a_memory_beside_its_fastest_peer(tmp_path: Path) -> None:
    work = {FORWARD: Work(1.0, 1.0), BACKWARD: Work(1.0, 1.0)}
    job = replace(JOB, shape=(2, 8192, 32, 128), what=(FORWARD, BACKWARD), work=work)
    times = {"ours": [0.002] * 2, "left": [0.004] * 2, "right": [0.003] * 2}
    both = {"ours": [0.005] * 2, "left": [0.006] * 2}
    found = [{"what": FORWARD, "seconds": times}, {"what": BACKWARD, "seconds": both}]
    other = replace(job, label="other", against=("left",))
    made = report([
        Outcome(job, {}, found),
        Outcome(other, {}, [{"what": FORWARD, "seconds": {"ours": [1, 1]}}]),
    ])  # fmt: skip
    assert [*usual(made.data())][2:] == ["| some | left | 2 | 4 | 5 | 6 |"]
    wrong = {"what": FORWARD, "contender": "left", "errors": {"o": 0.5}, "limits": {"o": 1e-4}}
    made = report([Outcome(job, {}, [wrong, *found])])
    assert [*usual(made.data())][2:] == ["| some | left | 2 | 4 (wrong) | 5 | 6 |"]


def test_means_over_shapes_beside_what_must_be() -> None:
    work = {FORWARD: Work(1.0, 1.0)}
    kda = replace(JOB, title="kda", what=(FORWARD,), work=work, against=("fla",))
    outcomes = [
        Outcome(job, {}, [{"what": FORWARD, "seconds": {"ours": [1, 1], "fla": [times, times]}}])
        for job, times in ((kda, 2), (replace(kda, shape=(1, 8, 2, 8), label="kda packed 8"), 8))
    ]
    assert [*shapes(report(outcomes).data())][2:] == [
        "| kda | fla | 2 | 4.00x | 1.60x |  | 1.60x |"
    ]


def test_a_box_is_written_anew(tmp_path: Path) -> None:
    data = {"commit": "abc", "date": "2026-11-26 01:34 UTC", "versions": {"fla-core": "0.6.0"}}
    data |= report([Outcome(JOB, {}, rows())]).data()
    (tmp_path / "some.json").write_text(json.dumps(data))
    text = "before\n<!-- table: some bench -->\nold\n<!-- end -->\nafter\n"
    made = written(text, tmp_path)
    assert made.startswith("before\n<!-- table: some bench -->\nOne a CPU, commit abc, 2026-11-26")
    assert "fla-core 0.6.0.\n\n| memory |" in made and "| some | 2, 64, 4, 16 | left |" in made
    assert made.endswith("\n<!-- end -->\nafter\n") and "old" not in made
    assert written(made, tmp_path) == made
