"""Every spec of a newcomer as a file of each backend, which holds its own check."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import archc
from archc.ir.plan import POSITIONS, examples
from tests.newcomers.agreement import HERE

NAMES = sorted(path.stem for path in HERE.glob("*.arch"))


@pytest.mark.parametrize("name", NAMES)
def test_an_instance_of_it_can_be_checked(name: str) -> None:
    """A table of positions that an attend reads has rows for every token of the check."""
    layer = archc.load(str(HERE / f"{name}.arch")).layer
    sizes = next(examples(layer, 2))
    assert sizes.get("length", POSITIONS) == POSITIONS


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["eager", "triton"])
@pytest.mark.parametrize("name", NAMES)
def test_a_file_checks_itself(name: str, backend: str, tmp_path: Path) -> None:
    path = tmp_path / f"{name}.py"
    path.write_text(archc.load(str(HERE / f"{name}.arch")).source(backend), "utf-8")
    done = subprocess.run([sys.executable, path], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " ok" in done.stdout, "the file has no check in it"


def test_every_spec_has_a_reference() -> None:
    """By its name in one of the test files, and the spec says its paper."""
    tests = "".join(path.read_text("utf-8") for path in HERE.glob("test_*.py"))
    assert len(NAMES) >= 15
    for name in NAMES:
        assert f'held("{name}"' in tests or f'HERE / "{name}.arch"' in tests, name
        assert "source: " in (HERE / f"{name}.arch").read_text("utf-8"), name
