"""Candidates are held against the oracle by running the kernels: here under the interpreter."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")


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
