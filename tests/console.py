"""Running the command line in tests."""

from __future__ import annotations

import os
import subprocess
import sys

from click.testing import CliRunner, Result

from archc.cli import archc

RUN = [sys.executable, "-c", "from archc.cli import main; main()"]
GOOD = "layer Twice(d):\n    input x[d]\n    output y[d] = 2 * x\n"
BAD = "layer Twice(d):\n    input x[d]\n    h = z + x\n    output y[d] = 2 * W\n"


def run(*args: str, stdin: str = "") -> Result:
    """One run in this process; an exception is not hidden."""
    return CliRunner().invoke(archc, args, input=stdin, catch_exceptions=False)


def process(*args: str, stdin: str = "", **env: str) -> subprocess.CompletedProcess[str]:
    """One run in its own process."""
    return subprocess.run(
        [*RUN, *args], input=stdin, capture_output=True, text=True, check=False,
        env={**os.environ, **env}, timeout=60,
    )  # fmt: skip
