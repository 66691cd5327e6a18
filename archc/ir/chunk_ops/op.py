"""What every chunk op says of itself."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from dataclasses import fields
from typing import Any, ClassVar

import sympy

from archc.dims import Axis
from archc.ir.graph import Graph, Node, Type
from archc.ir.shapes import Lengths, Types


class ChunkOp(ABC):
    """An op of chunked forms; its docstring has its formula.

    What it computes, its derivative and how it is written need torch, a builder or a backend, and
    stand with these: in tables that have every op, or say why one is left out.
    """

    in_order: ClassVar[bool] = False
    """Whether it works through its rows one after the other, or in steps: no gradient computes it a
    second time, however few operations it takes."""

    @abstractmethod
    def typed(self, types: Types) -> Type:
        """The type of its value from those of its operands. Raises TypeMismatch."""

    @abstractmethod
    def operations(self, node: Node, types: Types, lengths: Lengths) -> sympy.Expr:
        """Its operations, a sequence, counted as in `archc/ir/count.py`: those of one step, without
        the graph inside, where it has one."""

    @property
    def inner(self) -> Graph | None:
        """A graph that it runs in each of its steps."""
        return None

    def inner_runs(self, node: Node) -> sympy.Expr:
        """The number of times that the op runs the graph inside."""
        return sympy.Integer(1)

    @abstractmethod
    def reduction_dims(self) -> tuple[str, ...]:
        """The axes that it sums over or looks along: an element of its value needs more of an
        operand along these than the element at its own place."""

    def text(self, operands: tuple[str, ...]) -> str:
        """How a listing shows it, `gram[K, i, j, strict](q, k, g)`: its name, its fields (flags by
        name where they hold), and its operands."""
        name = re.sub(r"(?<!^)(?=[A-Z])", "_", type(self).__name__).lower()
        details = [_detail(f.name, getattr(self, f.name)) for f in fields(self)]  # pyright: ignore
        shown = ", ".join(detail for detail in details if detail)
        return f"{name}{f'[{shown}]' if shown else ''}({', '.join(operands)})"


class Moving(ChunkOp):
    """An op that moves values, and computes nothing."""

    def operations(self, node: Node, types: Types, lengths: Lengths) -> sympy.Expr:
        return sympy.Integer(0)


def _detail(name: str, value: Any) -> str:
    """One field; nothing for one that says nothing."""
    if isinstance(value, bool):
        return name if value else ""
    if value is None or value == () or isinstance(value, Graph):
        return ""
    if isinstance(value, tuple):
        return " ".join(map(str, value))
    return str(value) if isinstance(value, str | Axis) else f"{name} {value}"
