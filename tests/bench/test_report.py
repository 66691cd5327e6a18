"""What rows of measurements become: medians, ratios, shares of the roofline, what is wrong."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from archc.bench.chart import picture
from archc.bench.job import Entering, Input, Job, Work
from archc.bench.processes import Outcome
from archc.bench.report import notes, recorded, report, table

JOB = Job(
    "some.arch", "some", "Some", "some", "", (2, 64, 4, 16), {}, (Input("x", ("B", "T", 8)),),
    (Entering("q", False, False),), ("o",), ("S",), ("forward", "decode"), (64,),
    ("left", "right"), None, "cpu", "float32", 1.0,
    {"forward": Work(2e9, 1e9), "decode@64": Work(1e6, 8e9)},
)  # fmt: skip

TIMES = {"ours": [0.1, 0.2, 0.4], "left": [0.3, 0.4, 0.8]}


def rows(off: float = 1e-6) -> list[dict[str, Any]]:
    """A machine that copies 20 GB/s and computes 40 GFLOP/s."""
    forward, limits = {"what": "forward"}, {"o": 1e-4, "S": 1e-4}
    return [
        {"ceilings": {"bytes": 2e10, "flops": 4e10}, "machine": {"device": "a CPU"}},
        forward | {"contender": "ours", "errors": {"o": off, "S": 1e-7}, "limits": limits},
        forward | {"contender": "left", "errors": {"o": 0.5}, "limits": {"o": 1e-4}},
        forward | {"refused": "right", "reason": "RuntimeError: not here"},
        forward | {"contender": "ours", "peak_mib": 7.0},
        forward | {"seconds": TIMES},
        {"what": "decode@64", "seconds": {"ours": [0.4, 0.4, 0.4]}},
        {"remark": "right has no form for one token"},
        {"remark": "right has no form for one token"},
    ]


def test_numbers_of_a_run() -> None:
    forward, decode = report([Outcome(JOB, {}, rows())]).cases
    ours, left, right = forward.entries
    assert ours.milliseconds == pytest.approx(200) and (ours.rounds, ours.peak_mib) == (3, 7.0)
    assert (ours.low, ours.high) == (pytest.approx(150), pytest.approx(300))
    assert left.ours_faster == 2.0  # the median of 3, 2 and 2
    assert forward.floor_ms == pytest.approx(100) and ours.roofline == pytest.approx(0.5)
    assert right.milliseconds is None and right.refusal == "RuntimeError: not here"
    assert decode.shape == (64, 1, 4, 16)
    assert decode.floor_ms == pytest.approx(200)  # by its operations, not its bytes


def test_what_is_wrong_is_told_and_ours_fails_the_run() -> None:
    found = report([Outcome(JOB, {"cold": {"forward": 2.0}}, rows())])
    text = "\n".join(notes(found))
    assert "left: WRONG: o is off by 5.0e-01, at most 1e-04" in text
    assert "right: refused: RuntimeError: not here" in text
    assert "cold forward 2.0 s" in text and text.count("no form for one token") == 1
    assert found.failures() == []
    for off in (1e-2, float("inf"), float("nan")):
        (failure,) = report([Outcome(JOB, {}, rows(off))]).failures()
        assert failure.startswith("some, forward: o is off by")


def test_a_process_that_failed_fails_the_run() -> None:
    found = report([Outcome(JOB, {}, [*rows(), {"broken": "measuring: ended by signal 11"}])])
    assert found.failures() == ["some 2x64x4x16 float32: measuring: ended by signal 11"]
    refused = {"what": "forward", "refused": "ours", "reason": "RuntimeError: out of memory"}
    found = report([Outcome(JOB, {}, [*rows(), refused])])
    assert found.failures() == ["some, forward: RuntimeError: out of memory"]


def test_a_report_is_read_again() -> None:
    found = report([Outcome(JOB, {"cold": {"forward": 2.0}}, rows())])
    again = recorded(found.data())
    assert again.data() == found.data() and notes(again) == notes(found)


def test_table_and_picture_show_every_contender() -> None:
    found = report([Outcome(JOB, {}, rows())])
    out = io.StringIO()
    Console(file=out, width=200).print(table(found))
    lines = out.getvalue().split("\n")
    assert [line.split()[-1] for line in lines[2:3]] == ["5.0e-01"]
    assert "2.00x" in lines[2] and "refused" in lines[3] and "50%" in lines[1]
    figure = picture(found)
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["forward", "decode"]
    texts = [text.get_text().strip() for text in figure.axes[0].texts]
    assert texts == ["200", "400  WRONG", "right: refused"]
    marks = {x for line in figure.axes[0].lines if line.get_lw() == 2 for x in line.get_xdata()}
    assert marks == {figure.axes[0].texts[-1].get_position()[0]} and 0 not in marks


def test_what_was_stopped_before_its_time_was_taken_is_no_refusal() -> None:
    cut = [row for row in rows() if "seconds" not in row]
    out = io.StringIO()
    Console(file=out, width=200).print(table(report([Outcome(JOB, {}, cut)])))
    assert out.getvalue().count("no time") == 2 and out.getvalue().count("refused") == 1


def test_times_far_apart_are_drawn_on_a_logarithmic_axis() -> None:
    near, far = rows(), rows()
    far[5] = {"what": "forward", "seconds": {"ours": [1.5] * 3, "left": [0.05] * 3}}
    for measured, scale in ((near, "linear"), (far, "log")):
        axes, beside = picture(report([Outcome(JOB, {}, measured)])).axes
        assert [axes.get_xscale(), beside.get_xscale()] == [scale] * 2  # read alike
        lengths = [bar.get_width() for bar in axes.patches if bar.get_width()]
        assert axes.get_xlim()[1] > max(lengths)
    assert "  1,500" in [each.get_text() for each in axes.texts]
