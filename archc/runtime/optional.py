"""Triton and its Gluon, where they are installed: what is done without a GPU needs none."""

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
    gluon: Any
    tma: Any
    mbarrier: Any
    warpgroup_mma: Any
    warpgroup_mma_wait: Any
    fence_async_shared: Any

    class gl(Any):
        """The same as `tl`, of Gluon."""

    class tl(Any):
        """A class, for a checker of types: annotations of kernels name types in it."""

else:
    triton, tl = _installed("triton"), _installed("triton.language")
    gluon = _installed("triton.experimental.gluon")
    gl = _installed("triton.experimental.gluon.language")
    _hopper = _installed("triton.experimental.gluon.language.nvidia.hopper")
    tma, mbarrier = getattr(_hopper, "tma", None), getattr(_hopper, "mbarrier", None)
    warpgroup_mma = getattr(_hopper, "warpgroup_mma", None)
    warpgroup_mma_wait = getattr(_hopper, "warpgroup_mma_wait", None)
    fence_async_shared = getattr(_hopper, "fence_async_shared", None)
