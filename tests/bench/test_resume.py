"""A run of `archc bench` that goes on where an earlier one ended."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from archc.bench.job import Job
from archc.bench.processes import Outcome
from archc.bench.resume import OtherRun, Progress
from tests.bench.test_report import JOB, rows

NOW = {"commit": "abc", "versions": {"archc": "1"}}


@pytest.fixture(name="job")
def job_of(tmp_path: Path) -> Job:
    """A job whose file is there."""
    (tmp_path / "ours.py").write_text("text = 1\n")
    return replace(JOB, folder=str(tmp_path))


def test_what_ended_well_is_not_run_again(job: Job, tmp_path: Path) -> None:
    first = Progress()
    first.add(Outcome(job, {}, rows()))
    path = tmp_path / "out.json"
    path.write_text(json.dumps(NOW | first.data()))
    again = Progress.of(str(path), NOW)
    assert again.has(job) and again.data() == first.data()
    assert not again.has(replace(job, what=("forward",)))
    (tmp_path / "ours.py").write_text("text = 2\n")
    assert not again.has(job)


def test_what_failed_is_run_again_in_place(job: Job) -> None:
    progress, other = Progress(), replace(job, title="other")
    progress.add(Outcome(other, {}, rows()))
    progress.add(Outcome(job, {"cold": {"forward": 2.0}}, [*rows(), {"broken": "gone"}]))
    assert not progress.has(job) and progress.has(other)
    progress.add(Outcome(job, {}, rows()))
    assert progress.has(job) and not progress.found.broken and not progress.found.first
    assert [case.spec for case in progress.found.cases] == ["other"] * 2 + ["some"] * 2


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[]", "is no record"),
        ("{", "is no record"),
        (json.dumps(NOW | {"commit": "def"} | Progress().data()), "the commit def, this run abc"),
    ],
)
def test_numbers_of_another_run_are_kept_apart(text: str, told: str, tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    path.write_text(text)
    with pytest.raises(OtherRun, match=told):
        Progress.of(str(path), NOW)
