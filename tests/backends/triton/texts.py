"""The text of a layer's code, as tests load it."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from archc.backends.eager.emit import Code

from archc.compile import whole_in_kernels
from archc.ir import layer as ir
from archc.ir.plan import Plan


@lru_cache(maxsize=64)
def layer_text(layer: ir.Layer, written: Callable[[Plan], Code] = whole_in_kernels) -> str:
    """The file of a layer that has had all passes; written once for all tests of a process."""
    plan = Plan(layer)
    return written(plan).text(plan)
