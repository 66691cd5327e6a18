"""Candidates are held against the oracle by running the kernels: here under the interpreter."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from archc.backends.load import load

import archc
from archc.compile import lowered, whole_in_kernels
from archc.ir.plan import Plan
from archc.tune.settings_worker import kernels_of

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
