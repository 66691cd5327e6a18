"""A pattern of the layer IR that is written as one call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from archc.backends.eager.value import Value

from archc.ir.graph import Node

if TYPE_CHECKING:
    from archc.backends.eager.scope import Scope


@dataclass(frozen=True)
class Fused:
    """A node that is emitted as one call of `operands`; what lay between is not written."""

    operands: tuple[int, ...]
    emit: Callable[[Scope, Node], Value]
    hint: str
