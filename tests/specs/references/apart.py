"""References that need a process of their own, because transformers calls GPU code of packages that
it finds installed: the process hides those packages, runs a model once and saves what it did."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import torch


def hide(package: str) -> None:
    """From now on, the package is not installed, as far as imports can tell."""
    sys.modules[package] = None  # type: ignore[assignment]


def run(script: str, folder: Path, /, **given: Any) -> dict[str, Any]:
    """What `python -m tests.specs.references.SCRIPT FILE` makes of a file that holds `given`."""
    file = folder / "exchanged.pt"
    torch.save(given, file)
    command = [sys.executable, "-m", f"tests.specs.references.{script}", str(file)]
    root = Path(__file__).parents[3]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return torch.load(file)
