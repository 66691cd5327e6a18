"""Axes of values, for the rules that type them: how they are joined, and in which order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import sympy

from archc.dims import Axis
from archc.ir.graph import Type

Types = Sequence[Type]
Lengths = Mapping[str, sympy.Expr]
"""How many positions of an axis count, where that is not its size."""

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


def without(type: Type, names: tuple[str, ...]) -> Type:
    """A type without some of its axes."""
    return Type(tuple(a for a in type.axes if a.name not in names), type.dtype)


def along(axis: str, types: Types) -> Type:
    """The type of a value that an op along one of its axes keeps."""
    require(axis in types[0].names, f"along {axis} of {types[0].names}")
    return types[0]


def elements(axes: Iterable[Axis], lengths: Lengths) -> sympy.Expr:
    """The number of elements of a tensor of these axes, for one sequence."""
    sizes = (lengths.get(a.name, a.size) for a in axes if a.kind != "batch")
    return sympy.Mul(*sizes)
