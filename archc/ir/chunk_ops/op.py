"""The class of every chunk op, with the methods that each must have."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, Protocol

import sympy

from archc.dims import Axis
from archc.ir.graph import Graph, Node, Type
from archc.ir.shapes import Lengths, Types

if TYPE_CHECKING:
    from archc.ir.meaning_ops import Scope
    from archc.ir.named import Named

Cotangents = list[int | None]
"""The cotangent of each operand: a node with the operand's axes or fewer, None for no cotangent."""


class Gradients(Protocol):
    """A graph that gets a gradient, as rules see it (`archc/autodiff/gradient_builder.py`).

    A cotangent may lack axes of the value it belongs to: it is then the same along them. `full`
    gives it the axes that an op must see, `fit` sums it over those that its operand lacks.
    """

    graph: Graph
    active: set[int]

    def add(self, op: Any, *operands: int) -> int: ...
    def fn(self, fn: str, *operands: int) -> int: ...
    def number(self, value: sympy.Expr | int) -> int: ...
    def zero(self) -> int: ...
    def zeros(self, type: Type) -> int: ...
    def mul(self, one: int, other: int) -> int: ...
    def neg(self, id: int) -> int: ...
    def type(self, id: int) -> Type: ...
    def names(self, id: int) -> tuple[str, ...]: ...
    def reduce(self, id: int, axes: Iterable[str], fn: str = "sum") -> int: ...
    def fit(self, d: int, wide: Type, narrow: Type) -> int: ...
    def full(self, id: int, axes: Iterable[Axis]) -> int: ...
    def renamed(self, id: int, axes: Mapping[str, Axis]) -> int: ...
    def contract(
        self, operands: Sequence[tuple[int, Sequence[str]]], out: Sequence[tuple[str, Axis]]
    ) -> int: ...
    def of_body(
        self, body: Graph, values: Mapping[str, int], wanted: Sequence[str], d: Mapping[str, int]
    ) -> Mapping[str, int]: ...
    def refuse(self, node: Node, reason: str) -> NoReturn: ...


class ChunkOp:
    """An op of chunked forms, defined by its class alone; its docstring has its formula.

    How a target writes it stands with the target: `backends/eager/chunk_ops.py`, which has every
    op, and `archc/lowering/chunk_rules.py`, where kernels have it.

    Not an ABC, of which `isinstance` takes four times as long: a class that lacks a method is
    refused as soon as it is defined, unless it is `part` of others.
    """

    part: ClassVar[bool] = True
    """Whether it is no op, but what several have alike."""
    in_order: ClassVar[bool] = False
    """Whether it works through its rows one after the other, or in steps: no gradient computes it a
    second time, however few operations it takes."""
    held: ClassVar[str] = ""
    """The name of its values in kernels, plans and files: what they hold; or else `changed`,"""
    changed: ClassVar[str] = ""
    """a word behind the name of its first operand. Without either they are called after the op."""

    def __init_subclass__(cls, part: bool = False) -> None:
        cls.part = part
        lacks = [n for n in dir(cls) if getattr(getattr(cls, n), "__isabstractmethod__", False)]
        if lacks and not part:
            raise TypeError(f"the op {cls.__name__} has no {', '.join(lacks)}")

    @abstractmethod
    def typed(self, types: Types) -> Type:
        """The type of its value from those of its operands. Raises TypeMismatch."""

    @abstractmethod
    def meaning(self, node: Node, scope: Scope, *operands: Any, **none: Any) -> Named:
        """Its value from `Named` operands, their dims in any order: plain torch, written for
        clarity alone. torch is imported inside, as passes do without it."""

    @abstractmethod
    def gradient(self, b: Gradients, node: Node, d: int) -> Cotangents:
        """The cotangents of its operands from that of its value, `d`; the docstring has the
        formula. `archc/autodiff/reverse.py` says where more is known from the graph around it."""

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


class Moving(ChunkOp, part=True):
    """An op that moves values, and computes nothing."""

    def operations(self, node: Node, types: Types, lengths: Lengths) -> sympy.Expr:
        return sympy.Integer(0)


MADE_FOR_FIRST = "it is made for first derivatives, which are not differentiated again"


class MadeByGradients(ChunkOp, part=True):
    """An op that gradients are made of, and which is not differentiated again."""

    def gradient(self, b: Gradients, node: Node, d: int) -> Cotangents:
        b.refuse(node, MADE_FOR_FIRST)


def _detail(name: str, value: Any) -> str:
    """One field; nothing for one that says nothing."""
    if isinstance(value, bool):
        return name if value else ""
    if value is None or value == () or isinstance(value, Graph):
        return ""
    if isinstance(value, tuple):
        return " ".join(map(str, value))
    return str(value) if isinstance(value, str | Axis) else f"{name} {value}"
