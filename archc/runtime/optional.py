"""Triton, where it is installed: what is done without a GPU needs none."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any


def _installed(name: str) -> Any:
    """A module, or None where it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


if TYPE_CHECKING:
    triton: Any

    class tl(Any):
        """A class, for a checker of types: annotations of kernels name types in it."""

else:
    triton, tl = _installed("triton"), _installed("triton.language")
