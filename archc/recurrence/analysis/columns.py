"""Recurrences that do the same to each column of their state: what a run of tokens does to any
state is then found by the recurrence itself, run on more columns.

Along an axis V of the state no op looks, and states, outputs and what is written are linear
together. So the run that starts from the columns [0 | I], with 0 written in those of the identity,
ends with [Q | P] of S_end = P S_start + Q; and its outputs there, [o | R], say how every output
depends on the state before the run: it is o + R S_start.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import sympy

from archc.dims import Axis
from archc.ir import layer as ir
from archc.ir.graph import Graph, Node

LINEAR = ("neg", "real")
"""Elementwise functions of one operand that keep what is linear linear."""


@dataclass(frozen=True)
class Columns:
    """The state of a recurrence and its axes by name: `column`, along which each place is on its
    own, those of which each place has a P of its own (`shared`), and the others (`rows`)."""

    state: ir.State
    column: str
    rows: tuple[str, ...]
    shared: tuple[str, ...]


def columns_of(layer: ir.Layer) -> Columns | None:
    """The columns of a layer that is one recurrence along the tokens; None where there are none."""
    recurrences = [node.op for node in layer.graph if isinstance(node.op, ir.Recurrence)]
    if len(recurrences) != 1 or recurrences[0].reverse or len(recurrences[0].states) != 1:
        return None
    (recurrence,), (state,) = recurrences, recurrences[0].states
    if any(_counts_or_draws(node.op) for node in (*layer.graph, *recurrence.body)):
        return None
    for axis in (axis for axis in state.axes if axis.kind == "dim"):
        linear = _linear(recurrence.body, axis.name)
        if linear is None or not _given(layer.graph, linear, axis.name):
            continue
        if not _own_size(layer.graph, recurrence.body, axis):
            continue
        if not {*recurrence.body.outputs.values()} <= {node.id for node in linear}:
            continue
        names = [other.name for other in state.axes if other != axis]
        shared = tuple(name for name in names if _apart(recurrence.body, linear, name))
        if all(other.name in shared for other in state.axes if other.kind == "batch"):
            rows = tuple(name for name in names if name not in shared)
            return Columns(state, axis.name, rows, shared)
    return None


def _counts_or_draws(op: object) -> bool:
    """Whether an op has other values in another run over the same tokens, or counts them."""
    return isinstance(op, ir.Noise) or (isinstance(op, ir.Position) and op.axis.kind != "dim")


def _given(graph: Graph, linear: Iterable[Node], column: str) -> bool:
    """Whether what enters along the column is given to the layer, so that 0 can be given."""
    (recurrence,) = (node for node in graph if isinstance(node.op, ir.Recurrence))
    operands = ir.captured(recurrence)
    names = (node.op.name for node in linear if isinstance(node.op, ir.Input))
    given = [graph[operands[name]] for name in names if name in operands]
    return all(isinstance(n.op, ir.Input) and column in n.type.names for n in given)


def _linear(body: Graph, column: str) -> list[Node] | None:
    """The nodes that are linear in the state and in what is given along the column; None where one
    is of another degree, or looks along the column."""
    found: dict[int, Node] = {}
    for node in body:
        along = column in node.type.names
        if isinstance(node.op, ir.Input):
            linear = along
        else:
            which = [operand in found for operand in node.operands]
            linear = any(which)
            if linear and not (_keeps_degree(node, which) and _keeps_axis(body, node, column)):
                return None
        if linear != along:
            return None
        if linear:
            found[node.id] = node
    return [*found.values()]


def _keeps_degree(node: Node, linear: list[bool]) -> bool:
    """Whether a node is linear in those operands."""
    op = node.op
    if isinstance(op, ir.Contract):
        return sum(linear) == 1
    if isinstance(op, ir.Gather):
        return linear == [True, False]
    if isinstance(op, ir.Reduce):
        return op.fn in ("sum", "mean")
    if not isinstance(op, ir.Elementwise):
        return False
    if op.fn in ("add", "sub"):
        return all(linear)
    if op.fn == "mul":
        return sum(linear) == 1
    return op.fn in LINEAR or (op.fn == "div" and linear == [True, False])


def _apart(body: Graph, linear: Iterable[Node], name: str) -> bool:
    """Whether each place along an axis is on its own in all that is linear."""
    made = (node for node in linear if not isinstance(node.op, ir.Input))
    return all(name in node.type.names and _keeps_axis(body, node, name) for node in made)


def _keeps_axis(body: Graph, node: Node, name: str) -> bool:
    """Whether a node has at each place along an axis what its operands have there."""
    op = node.op
    if isinstance(op, ir.Reduce):
        return name not in op.axes
    if isinstance(op, ir.Gather):
        return name != op.axis and name not in body[node.operands[1]].type.names
    if not isinstance(op, ir.Contract):
        return True
    out = [label for label, axis in op.out if axis.name == name]
    for labels, operand in zip(op.ins, node.operands, strict=True):
        names = body[operand].type.names
        own = [label for label, each in zip(labels, names, strict=True) if each == name]
        if own and (own != out or list(labels).count(own[0]) > 1):
            return False
        if not own and out and out[0] in labels:
            return False
    return bool(out)


def _own_size(graph: Graph, body: Graph, column: Axis) -> bool:
    """Whether the size of an axis is that of no other one, and no number."""
    if not isinstance(column.size, sympy.Symbol):
        return False
    for node in (*graph, *body):
        for axis in node.type.axes:
            if axis.name != column.name and column.size in axis.size.free_symbols:
                return False
        if isinstance(node.op, ir.Constant) and column.size in node.op.value.free_symbols:
            return False
    return True
