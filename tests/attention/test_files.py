"""Generated files whose attends launch kernels."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.served import run


@pytest.mark.slow
def test_kernels_are_right_in_tritons_interpreter():
    """Values and gradients of whole files: printed kernels, launches, ops, what is summed after."""
    done = run("tests.attention.files")
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]


@pytest.mark.slow
def test_kernels_have_room_on_a_gpu():
    """Shared memory and spilled registers, compiled ahead of time."""
    command = [sys.executable, "-m", "tests.attention.compiled"]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
