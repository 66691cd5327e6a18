"""Checks under Triton's interpreter: in a process of their own, as it is chosen when Triton is
imported."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def printed(module: str, checks: str) -> list[str]:
    """The lines that a module of this folder prints of some checks."""
    done = subprocess.run(
        [sys.executable, "-m", f"tests.backends.triton.{module}", checks],
        env={**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.splitlines()
