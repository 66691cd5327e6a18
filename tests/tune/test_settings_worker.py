"""Candidates are held against the oracle by running the kernels: here under the interpreter."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from archc.backends.load import load

import archc
from archc.compile import lowered, whole_in_kernels
from archc.ir.plan import Plan
from archc.runtime.tuned import measured_options
from archc.tune import settings_worker
from archc.tune.settings_worker import Watched, kernels_of, launched
from tests.tune.interpreted import untimed

pytest.importorskip("triton")

POWERS = Path(__file__).parents[1] / "backends" / "triton" / "unusual" / "powers.arch"
"""A recurrence whose kernels call a function of the runtime."""


def test_what_kernels_call_stays_what_it_is() -> None:
    """Triton copies what a kernel's names stand for, unless it is a function of its own kind."""
    plan = Plan(lowered(archc.load(POWERS).layer))
    text = whole_in_kernels(plan).text(plan)
    launched = {*re.findall(r"launch_(?:kernel|tokens)\(\n? *(\w+_kernels?(?:_\w+)?),", text)}
    module = load(text, "powers")
    steps = {name for name in vars(module) if name.endswith("_step")}
    assert hasattr(module, "real_power")
    assert kernels_of(module).keys() == launched | steps


def test_launches_have_the_settings_that_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = SimpleNamespace(arg_names=["x", "T", "CHUNK"], src="def walk(): ...")
    found: list[dict[str, int]] = []

    def launch_kernel(kernel: Any, programs: int, given: list, counts: list, *rest: dict) -> None:
        found.append(measured_options(kernel, programs, {"CHUNK": 64}, rest[1]))

    monkeypatch.setattr(settings_worker, "marked", untimed)
    launch = Watched(launch_kernel, {"walk": kernel})
    for tried in ({}, {"num_warps": 8}):
        with launched(lambda where, tried=tried: tried if where[0] == "walk" else {}):
            launch(kernel, 1000, [None], [7], {"CHUNK": 64, "ROWS": 2}, {"num_warps": 4})
    assert found == [{"num_warps": 4}, {"num_warps": 8}]
    assert Watched.marks[-1][0] == ("walk", "CHUNK=64 DOT=None programs=2^10")


@pytest.mark.slow
def test_candidates_are_held_against_the_oracle(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.tune.interpreted", "linear_attention_simple"]
    done = subprocess.run(
        [*command, str(tmp_path)], env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.strip().split("\n")[-1])
    shipped, other, broken = found["rows"]
    assert shipped == {"candidate": "shipped", "wrong": []}
    assert other == {"candidate": "8:2", "wrong": []}
    assert any(each.startswith(("o:", "d ")) for each in broken["wrong"])
    assert any("gradient" in kernel for kernel in found["launches"])
