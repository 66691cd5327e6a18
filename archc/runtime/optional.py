"""Triton, where it is installed: what is done without a GPU needs none."""

from __future__ import annotations

import importlib
from typing import Any


def _installed(name: str) -> Any:
    """A module, or None where it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


triton, tl = _installed("triton"), _installed("triton.language")
