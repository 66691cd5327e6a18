"""Axes of values, for the rules that type them: how they are joined, and in which order."""

from __future__ import annotations

from collections.abc import Sequence

from archc.dims import Axis
from archc.ir.graph import Type

Types = Sequence[Type]
KIND_ORDER = {"batch": 0, "stream": 1, "dim": 2}


class TypeMismatch(Exception):
    """An ill-typed node: a bug in the pass that made it."""


def require(condition: bool, message: str) -> None:
    """Refuse an ill-typed node."""
    if not condition:
        raise TypeMismatch(message)


def join(types: Types) -> tuple[Axis, ...]:
    """Axes of a broadcast: batch, streams, then dims as the operand with most of them has them."""
    ordered = sorted(types, key=lambda t: -sum(a.kind == "dim" for a in t.axes))
    axes: dict[str, Axis] = {}
    for type in ordered:
        for axis in type.axes:
            axes.setdefault(axis.name, axis)
    return arrange(tuple(axes.values()))


def arrange(axes: tuple[Axis, ...]) -> tuple[Axis, ...]:
    """Batch first, then streams by name (the layer's own `t` first), then dims as they come."""

    def key(axis: Axis) -> tuple[int, bool, str]:
        named = axis.kind == "stream"
        return KIND_ORDER[axis.kind], named and axis.name != "t", axis.name if named else ""

    return tuple(sorted(axes, key=key))
