"""Tables for a README."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from archc.bench.job import BACKWARD, FORWARD, LAYER, LAYER_BACKWARD, Work
from archc.bench.markdown import markdown
from archc.bench.processes import Outcome
from archc.bench.report import report
from tests.bench.test_report import JOB, rows

WORK = {what: Work(1.0, 1.0) for what in (FORWARD, BACKWARD, LAYER, LAYER_BACKWARD)}


def timed(what: str, ours: float, left: float) -> list[dict[str, Any]]:
    """Times of ours and a peer, and the peaks of both."""
    return [
        {"what": what, "contender": "ours", "peak_mib": 1000.0},
        {"what": what, "contender": "left", "peak_mib": 2000.0},
        {"what": what, "seconds": {"ours": [ours, ours], "left": [left, left]}},
    ]


def test_sequences_and_a_token() -> None:
    assert markdown(report([Outcome(JOB, {}, rows())])) == [
        "| memory | B, T, H, D | peer | ours, ms | peer |  | + backward: ours | peer |  |"
        " MiB: ours | peer |",
        "| --- | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
        "| some | 2, 64, 4, 16 | left | 200 | 400 (wrong) | 2.00x |  |  |  |  |  |",
        "| some | 2, 64, 4, 16 | right | 200 | refused |  |  |  |  |  |  |",
        "",
        "| one token | B | peer | ours, ms | peer | in a CUDA graph: ours | peer |  |"
        " of the bandwidth |",
        "| --- | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |",
        "| some | 64 |  | 400 |  |  |  |  |  |",
    ]


def test_gradients_layers_and_means() -> None:
    first = replace(JOB, what=(FORWARD, BACKWARD), work=WORK, label="some n=2 P=8")
    second = replace(first, shape=(1, 8, 2, 8), label="some n=2 P=4 packed 3")
    layer = replace(first, what=(LAYER, LAYER_BACKWARD), label="some")
    lines = markdown(
        report([
            Outcome(first, {}, timed(FORWARD, 0.001, 0.002) + timed(BACKWARD, 0.004, 0.004)),
            Outcome(second, {}, timed(FORWARD, 0.001, 0.008)),
            Outcome(layer, {}, timed(LAYER, 0.001, 0.002) + timed(LAYER_BACKWARD, 0.002, 0.002)),
        ])
    )  # fmt: skip
    assert lines[2:4] == [
        "| some n=2 P=8 | 2, 64, 4, 16 | left | 1 | 2 | 2.00x | 4 | 4 | 1.00x | 1,000 | 2,000 |",
        "| some n=2 P=4 packed 3 | 1, 8, 2, 8 | left | 1 | 8 | 8.00x |  |  |  |  |  |",
    ]
    assert lines[7].startswith("| some | 2, 64, 4, 16 | left | 1 | 2 | 2.00x | 2 | 2 | 1.00x")
    assert lines[-3:] == [
        "| memory, mean over shapes | peer | shapes | forward | + backward |",
        "| --- | --- | ---: | ---: | ---: |",
        "| some n=2 | left | 2 | 4.00x | 1.00x |",
    ]
