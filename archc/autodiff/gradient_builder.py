"""Nodes of a gradient graph: what rules add them with.

A cotangent may lack axes of the value it belongs to: it is then the same along them, as an addend
of a sum is. `full` gives it the axes that an op must see.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NoReturn

import sympy

from archc.dims import Axis
from archc.functions.definitions import FUNCTIONS
from archc.ir import builder
from archc.ir import layer as ir
from archc.ir.graph import Graph, Node, Type
from archc.ir.value_names import cotangent


class NoGradient(Exception):
    """A node that no rule differentiates, and why: the caller keeps another form."""

    def __init__(self, node: Node, reason: str):
        name = f" `{node.name}`" if node.name else ""
        where = f" ({node.span.where})" if node.span else ""
        super().__init__(f"no gradient of {type(node.op).__name__}{name}{where}: {reason}")
        self.node = node
        self.reason = reason


class Builder(builder.Builder):
    """Adds nodes to a graph that has the forward values; an equal node is never added twice.

    `active`: the values that depend on a wanted input, through reals alone. `masked`: values that
    a choice stands between them and an output, so that a cotangent of 0 may meet an infinite slope.
    `differentiate` is `reverse.gradient`, for bodies.
    """

    def __init__(self, graph: Graph, active: set[int], differentiate: Callable[..., Any]):
        super().__init__(graph)
        self.active = active
        self.masked = _before_choices(graph)
        self.differentiate = differentiate
        self.joined: dict[int, tuple[Any, int]] = {}  # of scans, see `scans.py`
        self._found = {self._key(n.op, n.operands): n.id for n in graph if _may_share(n.op)}

    def add(self, op: Any, *operands: int) -> int:
        """The node of an op on operands: that of the graph if it has one."""
        key = self._key(op, operands)
        if key not in self._found or not _may_share(op):
            self._found[key] = super().add(op, *operands)
        return self._found[key]

    def _key(self, op: Any, operands: tuple[int, ...]) -> tuple[Any, ...]:
        if isinstance(op, ir.Elementwise) and FUNCTIONS[op.fn].commutes:
            operands = tuple(sorted(operands))
        return op, operands

    # --- elementwise ----------------------------------------------------------------------------

    def zero(self) -> int:
        """0 as a real."""
        return self.fn("real", self.number(0))

    def mul(self, one: int, other: int) -> int:
        """A product; by 1 it is the other factor."""
        if self.value(other) == 1:
            return one
        return other if self.value(one) == 1 else self.fn("mul", one, other)

    def neg(self, id: int) -> int:
        """`-x`; of `-x` it is x."""
        node = self.graph[id]
        return node.operands[0] if node.op == ir.Elementwise("neg") else self.fn("neg", id)

    def value(self, id: int) -> sympy.Expr | None:
        """The number that a node is, if it is one."""
        op = self.graph[id].op
        return op.value if isinstance(op, ir.Constant) else None

    def sum(self, ids: Sequence[int]) -> int:
        """The sum of at least one value."""
        return self.chain("add", ids)

    def addends(self, id: int) -> list[int]:
        """The terms of a sum."""
        node = self.graph[id]
        if node.op != ir.Elementwise("add"):
            return [id]
        return [term for operand in node.operands for term in self.addends(operand)]

    # --- axes -----------------------------------------------------------------------------------

    def reduce(self, id: int, axes: Iterable[str], fn: str = "sum") -> int:
        """A value reduced over those of the axes that it has."""
        names = tuple(name for name in self.names(id) if name in set(axes))
        return self.add(ir.Reduce(fn, names), id) if names else id

    def fit(self, d: int, wide: Type, narrow: Type) -> int:
        """A cotangent of a value that was broadcast from `narrow` to `wide`, of what it was."""
        gone = [axis for axis in wide.axes if axis.name not in narrow.names]
        missing = [axis.size for axis in gone if axis.name not in self.names(d)]
        d = self.reduce(d, [axis.name for axis in gone])
        return self.mul(d, self.number(sympy.Mul(*missing))) if missing else d

    def exactly(self, d: int, type: Type) -> int:
        """A value with the axes of a type, in its order."""
        d = self.full(d, type.axes)
        return self.contract([(d, self.names(d))], [(axis.name, axis) for axis in type.axes])

    def renamed(self, id: int, axes: Mapping[str, Axis]) -> int:
        """A value with some axes under other names."""
        named = [(axis.name, axes.get(axis.name, axis)) for axis in self.type(id).axes]
        return self.contract([(id, self.names(id))], named)

    def contract(
        self, operands: Sequence[tuple[int, Sequence[str]]], out: Sequence[tuple[str, Axis]]
    ) -> int:
        """A contraction of operands with their labels; itself where it changes nothing."""
        id, labels = operands[0]
        same = tuple(labels) == tuple(label for label, _ in out)
        if len(operands) == 1 and same and self.type(id).axes == tuple(axis for _, axis in out):
            return id
        ins = tuple(tuple(labels) for _, labels in operands)
        return self.add(ir.Contract(ins, tuple(out)), *(id for id, _ in operands))

    # --- graphs ---------------------------------------------------------------------------------

    def inline(self, graph: Graph, inputs: Mapping[str, int]) -> dict[str, int]:
        """Another graph's nodes on values for its inputs; its outputs."""
        ids: dict[int, int] = {}
        for node in graph:
            if isinstance(node.op, ir.Input):
                ids[node.id] = self.full(inputs[node.op.name], node.type.axes)
            else:
                ids[node.id] = self.add(node.op, *(ids[operand] for operand in node.operands))
        return {name: ids[id] for name, id in graph.outputs.items()}

    def of_body(
        self, body: Graph, values: Mapping[str, int], wanted: Sequence[str], d: Mapping[str, int]
    ) -> dict[str, int]:
        """The cotangents of those wanted inputs of a body that its outputs depend on, at values of
        its inputs, from those of its outputs."""
        made = self.differentiate(body, wanted, list(d), save=False)
        given = {**values, **{cotangent(name): id for name, id in d.items()}}
        found = self.inline(made.backward, given)
        reached = [name for name in wanted if name not in made.unreached]
        return {name: found[cotangent(name)] for name in reached}

    def zeros(self, type: Type) -> int:
        """0 along the axes of a type."""
        return self.exactly(self.zero(), type)

    def refuse(self, node: Node, reason: str) -> NoReturn:
        """A node has no gradient. Raises NoGradient."""
        raise NoGradient(node, reason)


def _may_share(op: Any) -> bool:
    """Whether a second node of the op on the same operands has the same value."""
    return not isinstance(op, ir.Noise | ir.Input | ir.Param)


CHOICES = ("where", "max", "min", "relu")


def _before_choices(graph: Graph) -> set[int]:
    """Values that an op reads, at once or later, which gives some of them the cotangent 0."""
    found: set[int] = set()
    for node in graph:
        chooses = isinstance(node.op, ir.Elementwise) and node.op.fn in CHOICES
        if chooses or isinstance(node.op, ir.Softmax):
            found |= graph.ancestors(node.id)
    return found
