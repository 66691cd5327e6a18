"""What ruff and pyright say of the project: nothing."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def findings(checker: str, *arguments: str) -> str:
    """What a checker prints where it finds something, else nothing."""
    done = subprocess.run(
        [str(Path(sys.executable).parent / checker), *arguments],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return done.stdout + done.stderr if done.returncode else ""


def test_ruff_finds_nothing() -> None:
    assert not findings("ruff", "check", "--output-format", "concise", ".")


def test_pyright_finds_nothing(request: pytest.FixtureRequest) -> None:
    """All of `archc` and `backends`: a minute of one core, so not again for the same sources that
    it found nothing in before, which pytest's cache knows."""
    content = hashlib.sha256(version("pyright").encode())
    compiler = sorted([*ROOT.glob("archc/**/*.py"), *ROOT.glob("backends/**/*.py")])
    for path in [ROOT / "pyproject.toml", *compiler]:
        content.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes())
    cache, key = request.config.cache, content.hexdigest()
    assert cache is not None
    if cache.get("archc/pyright", None) != key:
        assert not findings("pyright", "--pythonpath", sys.executable)
        cache.set("archc/pyright", key)
