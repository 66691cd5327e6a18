"""Kernel IR: the walk along segments, from what each of them writes and what it leaves of a state.

along the segments    S' = D S + E
"""

from __future__ import annotations

from dataclasses import dataclass

import sympy

from archc.dims import OWN, Axis, own_size
from archc.ir import layer as ir
from archc.ir.builder import Builder
from archc.ir.graph import Graph, Type
from archc.ir.kernel import Kernel
from archc.ir.roles import CARRY, of_segments
from archc.ir.shapes import arrange
from archc.ir.value_names import state_before

MOST = 32
"""How much of the other dim of a state a program has beside a matrix that is applied to it."""

SEGMENT = Axis(f"segment{OWN}", own_size("segments"), "stream")
"""The segments of all sequences, one after the other."""


@dataclass(frozen=True)
class Rule:
    """The update of a state: `times` a factor, `plus` an addend; `one` and `nothing` are the factor
    and the addend that change nothing."""

    times: str
    plus: str
    one: sympy.Expr
    nothing: sympy.Expr


SCALED = Rule("mul", "add", sympy.Integer(1), sympy.Integer(0))
LARGEST = Rule("add", "max", sympy.Integer(0), -sympy.oo)


class Join:
    """The walk along the segments, under construction."""

    def __init__(self, walk: Kernel, exact: bool = False) -> None:
        self.walk, self.exact, infer = walk, exact, walk.graph.infer
        self.graph, self.body = Graph[object](infer), Graph[object](infer)
        self.loads: dict[int, str] = {}
        self.captures: dict[str, int] = {}
        self.starts: dict[str, int] = {}

    def add(
        self, state: ir.State, start: int, end: str, rule: Rule,
        kept: tuple[str, tuple[Axis, ...]] | None,
    ) -> None:  # fmt: skip
        """S' = D S + E for one state, which is `start` of the walk's graph before all segments."""
        body, name = self.body, state.name
        make = Builder(body)
        self.starts[name] = self._copied(start)
        before = body.add(ir.Input(state_before(name), Type(state.axes)), name=name)
        scaled = before
        if kept is not None:
            scale = self._captured(*kept)
            scaled = make.fn(rule.times, before, scale)
            if rule == SCALED:
                zero = number(body, rule.nothing)
                empty = make.fn("eq", before, zero)
                scaled = make.fn("where", empty, zero, scaled)
        made = self._captured(end, state.axes)
        body.outputs[name] = make.fn(rule.plus, scaled, made)
        body.outputs[f"{name}.starts"] = before

    def add_matrix(
        self, state: ir.State, start: int, end: str, kept: tuple[str, tuple[Axis, ...]], row: Axis,
        column: Axis,
    ) -> None:  # fmt: skip
        """S' = D S + E for a matrix D."""
        body, name = self.body, state.name
        self.starts[name] = self._copied(start)
        before = body.add(ir.Input(state_before(name), Type(state.axes)), name=name)
        matrix = self._captured(*kept)
        source = tuple(column.name if a == row else a.name for a in state.axes)
        out = tuple((axis.name, axis) for axis in state.axes)
        op = ir.Contract((body[matrix].type.names, source), out)
        product = body.add(op, matrix, before)
        made = self._captured(end, state.axes)
        body.outputs[name] = Builder(body).fn("add", product, made)
        body.outputs[f"{name}.starts"] = before

    def _load(self, name: str, axes: tuple[Axis, ...]) -> int:
        """An input of the kernel."""
        known = {each: id for id, each in self.loads.items()}
        if name not in known:
            known[name] = self.graph.add(ir.Input(name, Type(axes)), name=name)
            self.loads[known[name]] = name
        return known[name]

    def _copied(self, id: int) -> int:
        """The value of a node of the walk, computed here from the same loads."""
        node = self.walk.graph[id]
        if id in self.walk.loads:
            return self._load(self.walk.loads[id], node.type.axes)
        operands = [self._copied(operand) for operand in node.operands]
        return self.graph.add(node.op, *operands, name=node.name, span=node.span)

    def _captured(self, name: str, axes: tuple[Axis, ...]) -> int:
        """An input of the body: what is there for each segment."""
        if name not in self.captures:
            self.captures[name] = self._load(name, arrange((SEGMENT, *axes)))
            self.body.add(ir.Input(name, Type(axes)), name=name)
        (found,) = (n.id for n in self.body if isinstance(n.op, ir.Input) and n.op.name == name)
        return found

    def kernel(self, op: ir.Recurrence) -> Kernel:
        """All of it; `op` is the walk along the chunks."""
        graph, walk = self.graph, self.walk
        join = ir.Recurrence(
            SEGMENT, (*self.captures,), op.states, self.body, op.heads, reverse=op.reverse
        )
        recurrence = graph.add(join, *self.captures.values(), *self.starts.values())
        stores = {}
        for state in op.states:
            name = f"{state.name}.starts"
            stores[name] = graph.add(ir.Result(name), recurrence)
            if state.name in walk.ends:
                self._load(walk.ends[state.name], state.axes)
        why = ("from segment to segment",)
        return Kernel(
            of_segments(walk.name, CARRY), graph, self.loads, stores, walk.grid, walk.split,
            recurrence, walk.ends, why, most=MOST if self.exact else walk.most, exact=self.exact,
            told=True,
        )  # fmt: skip


def number(graph: Graph, value: sympy.Expr) -> int:
    """A real number."""
    made = graph.add(ir.Constant(value))
    return Builder(graph).fn("real", made) if value.is_finite else made
