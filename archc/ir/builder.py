"""Adds nodes to graphs: the one way in which passes do it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import reduce
from typing import Any

import sympy

from archc.dims import Axis
from archc.ir import chunk as ck
from archc.ir import layer as ir
from archc.ir.graph import Graph, Type
from archc.source import Span


class Builder:
    """Adds nodes to a graph; what it adds comes from `span` of the spec."""

    graph: Graph
    span: Span | None = None

    def __init__(self, graph: Graph, span: Span | None = None) -> None:
        self.graph, self.span = graph, span

    def add(self, op: Any, *operands: int) -> int:
        """The node of an op on operands."""
        return self.graph.add(op, *operands, span=self.span)

    def type(self, id: int) -> Type:
        """The type of a node."""
        return self.graph[id].type

    def names(self, id: int) -> tuple[str, ...]:
        """The names of a node's axes."""
        return self.graph[id].type.names

    def number(self, value: sympy.Expr | int) -> int:
        """A number."""
        return self.add(ir.Constant(sympy.Integer(value) if isinstance(value, int) else value))

    def fn(self, fn: str, *operands: int) -> int:
        """An elementwise function."""
        return self.add(ir.Elementwise(fn), *operands)

    def chain(self, fn: str, ids: Sequence[int]) -> int:
        """At least one value, joined by a function of two, from the first on."""
        return reduce(lambda one, other: self.fn(fn, one, other), ids)

    def full(self, id: int, axes: Iterable[Axis]) -> int:
        """A value with all of the axes, in any order."""
        missing = tuple(axis for axis in axes if axis.name not in self.names(id))
        return self.add(ck.Expand(missing), id) if missing else id

    def real(self, id: int) -> int:
        """A value as real numbers."""
        return id if self.type(id).dtype == "real" else self.fn("real", id)


class Sharing(Builder):
    """A builder that adds no op on values a second time, where the graph has it already."""

    def add(self, op: Any, *operands: int) -> int:
        """The node of an op on operands: that of the graph if it has one."""
        for id in self.graph.users(operands[0]) if operands else ():
            if self.graph[id].operands == operands and self.graph[id].op == op:
                return id
        return super().add(op, *operands)
