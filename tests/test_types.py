"""What pyright says of the project: nothing."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PYRIGHT = [str(Path(sys.executable).parent / "pyright"), "--pythonpath", sys.executable]


def test_pyright_finds_nothing(request: pytest.FixtureRequest) -> None:
    """All of `archc` and `backends`: a minute of one core, so not again for the same sources that
    it found nothing in before, which pytest's cache knows."""
    content = hashlib.sha256(version("pyright").encode())
    compiler = sorted([*ROOT.glob("archc/**/*.py"), *ROOT.glob("backends/**/*.py")])
    for path in [ROOT / "pyproject.toml", *compiler]:
        content.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes())
    cache, key = getattr(request.config, "cache", None), content.hexdigest()
    if cache is None or cache.get("archc/pyright", None) != key:
        done = subprocess.run(PYRIGHT, cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    if cache is not None:
        cache.set("archc/pyright", key)
