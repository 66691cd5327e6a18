"""A chunked form under construction: its graph, its axes, and how values are combined in it.

Values along tokens have the axis `stream`; values in chunks have `chunk` and `row` in its place,
and matrices between the rows of a chunk `row` and `col`. Axes are joined by name; dims in `outer`
(heads) are those that every value of a memory shares.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import sympy

from archc.dims import Axis
from archc.ir import chunk as ck
from archc.ir import layer as ir
from archc.ir.builder import Builder, Sharing
from archc.ir.free_names import marked
from archc.ir.graph import Graph, Type
from archc.ir.typing import layer_graph

REAL = (ck.Gram, ck.Mix, ck.Scan, ck.Inverse)
"""Ops that take no integers, as a key that is 0 or 1 is."""


@dataclass(frozen=True)
class Frame(Sharing):
    """The graph, and the axes of tokens, chunks, rows and columns; `outer` are names of dims."""

    graph: Graph
    stream: Axis
    chunk: Axis
    row: Axis
    col: Axis
    outer: tuple[str, ...] = ()

    def has(self, id: int, names: Collection[str]) -> bool:
        """Whether a value varies along one of the axes."""
        return any(name in names for name in self.names(id))

    def add(self, op: object, *operands: int) -> int:
        """A node, unless there is one that is the same."""
        if isinstance(op, REAL):
            operands = tuple(map(self.real, operands))
        same = [] if operands else [node.id for node in self.graph if node.op == op]
        return same[0] if same else super().add(op, *operands)

    # --- elementwise ---

    def fn(self, fn: str, *operands: int) -> int:
        """An elementwise function, its operands in an order by which heads stand before rows in the
        result: a program has one head, and finds the rows of it side by side in memory."""
        if fn in ("add", "mul") and not self._heads(operands[1]) <= self._heads(operands[0]):
            operands = operands[::-1]
        return super().fn(fn, *operands)

    def _heads(self, id: int) -> set[str]:
        return {*self.outer} & {*self.names(id)}

    def with_heads(self, id: int, other: int) -> int:
        """A value with the heads of another, which stand before its rows."""
        heads = [a for a in self.graph[other].type.axes if a.name in self._heads(other)]
        if all(axis.name in self.names(id) for axis in heads):
            return id
        wide = self.full(id, heads)
        return self._contract((wide,), self.graph[wide].type.axes)

    def total(self, ids: Sequence[int | None]) -> int | None:
        """The sum of those values that there are; None if there is none."""
        found = [id for id in ids if id is not None]
        return self.chain("add", found) if found else None

    def times(self, *ids: int | None) -> int | None:
        """The product of values; None stands for 1."""
        found = [id for id in ids if id is not None]
        return self.chain("mul", found) if found else None

    # --- products ---

    def product(self, a: int, b: int, over: Collection[str] = ()) -> int:
        """sum over the axes `over` of a * b, joined by name: the axes of a, then those of b."""
        axes = {axis.name: axis for id in (a, b) for axis in self.graph[id].type.axes}
        kept = [axis for name, axis in axes.items() if name not in over]
        return self._contract((a, b), kept)

    def renamed(self, id: int, names: Mapping[str, Axis]) -> int:
        """A value whose axes have other names: `{"i": j}`."""
        type = self.graph[id].type
        out = tuple((axis.name, names.get(axis.name, axis)) for axis in type.axes)
        return self.add(ir.Contract((type.names,), out), id)

    def _contract(self, ids: tuple[int, ...], kept: Sequence[Axis]) -> int:
        ordered = self._ordered(kept)
        ins = tuple(self.names(id) for id in ids)
        return self.add(ir.Contract(ins, tuple((axis.name, axis) for axis in ordered)), *ids)

    def _ordered(self, axes: Sequence[Axis]) -> list[Axis]:
        """Batch, stream, chunk, outer dims, then rows, columns, and the other dims as they come."""
        first = ["batch", self.stream.name, self.chunk.name, *self.outer]
        first += [self.row.name, self.col.name]
        rank = {name: place for place, name in enumerate(first)}
        return sorted(axes, key=lambda axis: rank.get(axis.name, len(first)))

    # --- tokens and chunks ---

    def cut(self, id: int, fill: int = 0, steps: str | None = None) -> int:
        """A value along tokens in chunks; one that is the same at every token is repeated, so that
        what fills the last chunk is `fill` for it as well. A solution is in chunks, and 0 there."""
        if (fill, steps) == (0, None) and self._is_solution(id):
            return self.graph[id].operands[0]
        if self.stream.name not in self.names(id):
            id = self.full(id, (self.stream,))
        op = ck.Chunks(self.stream.name, self.chunk, self.row, fill, steps, self.outer)
        return self.add(op, id)

    def _is_solution(self, id: int) -> bool:
        op, operands = self.graph[id].op, self.graph[id].operands
        tokens = isinstance(op, ck.Tokens) and op.steps is None
        return tokens and isinstance(self.graph[operands[0]].op, ck.Conjugate)

    def joined(self, id: int, steps: Axis | None = None) -> int:
        """A value in chunks along tokens again."""
        return self.add(ck.Tokens(self.chunk.name, self.row.name, self.stream, steps), id)

    def last(self, id: int) -> int:
        """The last row of a chunk."""
        return self.add(ck.Select(self.row.name, -1), id)

    def sums(self, gates: int, reverse: bool = False, exclusive: bool = False) -> int:
        """exp of the log gates summed along the rows."""
        return self.fn("exp", self.add(ck.Sums(self.row.name, reverse, exclusive), gates))

    def before(self, strict: bool) -> int:
        """True for pairs of rows j <= i (strict: j < i)."""
        i, j = (self.add(ir.Position(axis)) for axis in (self.row, self.col))
        return self.fn("lt" if strict else "le", j, i)


def settled(graph: Graph, id: int, type: Type) -> int:
    """A value as real numbers with just these axes, in this order."""
    if graph[id].type.dtype != "real":
        id = Builder(graph).fn("real", id)
    names = graph[id].type.names
    missing = tuple(axis for axis in type.axes if axis.name not in names)
    id = graph.add(ck.Expand(missing), id) if missing else id
    names = graph[id].type.names
    if names == type.names:
        return id
    return graph.add(ir.Contract((names,), tuple((axis.name, axis) for axis in type.axes)), id)


def input_of(graph: Graph, name: str, type: Type) -> int:
    """An input of a form."""
    return graph.add(ir.Input(name, type), name=name)


def frame_of(recurrence: ir.Recurrence) -> Frame:
    """An empty graph with chunks of the Recurrence's stream; its axes have names of their own."""
    taken = {axis.name for node in recurrence.body for axis in node.type.axes}
    taken |= {
        recurrence.stream.name,
        *(axis.name for state in recurrence.states for axis in state.axes),
    }
    for graph in (graph for law in recurrence.laws for graph in (law.merge, law.apply)):
        taken |= {axis.name for node in graph for axis in node.type.axes}

    count = sympy.ceiling(recurrence.stream.size / ck.CHUNK)
    row = Axis(marked("i", taken, "_"), ck.CHUNK)
    return Frame(
        layer_graph(), recurrence.stream, Axis(marked("n", taken, "_"), count, "stream"), row,
        row.renamed(marked("j", taken, "_")), tuple(recurrence.heads),
    )  # fmt: skip
