"""The degree of a recurrence's values in its states: free of them, linear, linear over (max, +), or
none of these.

Every value of a Recurrence's body is looked at once, in dataflow order. A product of two values
that both hold a state, or a function such as tanh of one, is where a chunked form ends; the node
that does it is kept, so that it can be underlined.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import partial

from archc.ir import layer as ir
from archc.ir.graph import Graph, Node
from archc.recurrence.analysis.semirings import joined

CONSTANT, LINEAR, OTHER = "constant", "linear", "other"

SUMS = {"add", "sub"}
"""Elementwise functions that keep what is linear linear."""


@dataclass(frozen=True)
class Degree:
    """The degree of a value in a component's states; `culprit` is the node that broke the rule."""

    kind: str
    culprit: int | None = None
    why: str = ""


def updates(recurrence: ir.Recurrence) -> dict[str, int]:
    """The node of each state's value after the token."""
    return {state.name: recurrence.body.outputs[state.name] for state in recurrence.states}


def before(recurrence: ir.Recurrence) -> dict[int, str]:
    """The nodes of the states' values before the token, and whose they are."""
    names = {state.before: state.name for state in recurrence.states}
    return {
        node.id: names[node.op.name]
        for node in recurrence.body
        if isinstance(node.op, ir.Input) and node.op.name in names
    }


def reads(recurrence: ir.Recurrence, state: str) -> frozenset[str]:
    """States that the update of `state` reads, before or after the token. A state that becomes what
    another one was, or becomes too, feeds nothing by that."""
    old, own = before(recurrence), recurrence.body.outputs[state]
    after = {id: name for name, id in updates(recurrence).items() if id != own and id not in old}
    found: set[str] = set()
    stack, seen = [own], set[int]()
    while stack:
        id = stack.pop()
        if id in seen:
            continue
        seen.add(id)
        if id in after:
            found.add(after[id])
            continue
        if id in old:
            found.add(old[id])
        stack += recurrence.body[id].operands
    return frozenset(found)


def degrees(
    recurrence: ir.Recurrence, component: Collection[str], sums: str = ""
) -> Mapping[int, Degree]:
    """The degree of every node in the states of `component`; other states count as given values.

    With `sums`, one of `SEMIRINGS`, products are sums, and sums are what that says:
    m[t] = max(a + m[t-1], b) is linear.
    """
    old, after = before(recurrence), updates(recurrence)
    own = {after[name] for name in component}
    outside = {id for id in after.values() if id not in old and id not in own}
    found: dict[int, Degree] = {}
    for node in recurrence.body:
        if node.id in outside:
            found[node.id] = Degree(CONSTANT)
        elif node.id in old:
            found[node.id] = Degree(LINEAR if old[node.id] in component else CONSTANT)
        else:
            of = (joined(sums, recurrence.body, node) if sums else None) or node.operands
            rule = partial(_tropical, sums) if sums else _ordinary
            found[node.id] = rule(recurrence.body, node, [found[operand] for operand in of])
    return found


def _ordinary(body: Graph, node: Node, operands: list[Degree]) -> Degree:
    """The degree of a node from its operands', over sums and products."""
    early = _settled(operands)
    if early is not None:
        return early
    op, linear = node.op, [o.kind == LINEAR for o in operands]
    if isinstance(op, ir.Contract):
        return _product(node, linear)
    if isinstance(op, ir.Reduce):
        return _linear_if(op.fn in ("sum", "mean"), node, f"`{op.fn}` of a state")
    if isinstance(op, ir.Gather | ir.Scatter | ir.Segment):
        return _linear_if(not any(linear[1:]), node, "an index that depends on a state")
    if isinstance(op, ir.Elementwise):
        return _elementwise(node, op.fn, linear)
    return _other(node, f"`{type(op).__name__.lower()}` of a state")


def _elementwise(node: Node, fn: str, linear: list[bool]) -> Degree:
    """Sums, scalings and choices keep a state linear; every other function does not."""
    if fn in SUMS or fn in ("neg", "real"):
        return Degree(LINEAR)
    if fn == "mul":
        return _product(node, linear)
    if fn == "div":
        return _linear_if(not linear[1], node, "division by a state")
    if fn == "where":
        return _linear_if(not linear[0], node, "a choice that depends on a state")
    return _other(node, f"`{fn}` of a state")


def _tropical(sums: str, body: Graph, node: Node, operands: list[Degree]) -> Degree:
    """The degree of a node over (max, +) and the like."""
    early = _settled(operands)
    if early is not None:
        return early
    fn = node.op.fn if isinstance(node.op, ir.Elementwise) else ""
    linear = [o.kind == LINEAR for o in operands]
    if joined(sums, body, node) is not None:
        return Degree(LINEAR)
    if fn == "add":
        return _product(node, linear)
    if fn == "sub":
        return _linear_if(not linear[1], node, "minus a state")
    if fn == "where":
        return _linear_if(not linear[0], node, "a choice that depends on a state")
    return _other(node, f"`{fn or type(node.op).__name__.lower()}` of a state")


def _settled(operands: list[Degree]) -> Degree | None:
    """The result where operands decide it alone: one is beyond rescue, or all are constant."""
    for operand in operands:
        if operand.kind == OTHER:
            return operand
    if all(operand.kind == CONSTANT for operand in operands):
        return Degree(CONSTANT)
    return None


def _product(node: Node, linear: list[bool]) -> Degree:
    return _linear_if(sum(linear) < 2, node, "a state times a state")


def _linear_if(condition: bool, node: Node, why: str) -> Degree:
    return Degree(LINEAR) if condition else _other(node, why)


def _other(node: Node, why: str) -> Degree:
    return Degree(OTHER, node.id, why)
