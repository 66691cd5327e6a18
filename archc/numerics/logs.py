"""Layer IR: the logarithm of a gate, from the expression that makes the gate.

A recurrence multiplies gates token by token; a chunk adds their logarithms. The logarithm of a
computed gate has lost digits, or is -oo where the gate has underflown, so it is made from what the
gate is made of: `log(exp(e)) -> e`, `log(sigmoid(x)) -> logsigmoid(x)`.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import sympy

from archc.functions.interval import ANY, Interval
from archc.ir import layer as ir
from archc.ir.builder import Builder
from archc.ir.graph import Graph, Node
from archc.numerics.propagation import intervals

Known = Mapping[int, Interval]

SMALLEST = sympy.Rational(1, 2**126)
"""Least normal number of float32: what a gate is that rounding has brought to 0 or below."""


@dataclass(frozen=True)
class NoLog:
    """The reason why a value has no logarithm: the node that stopped it (an id), in words."""

    node: int
    reason: str


@dataclass(frozen=True)
class Growth:
    """The interval of a gate's logarithm, and so whether a state can grow by it."""

    log: Interval

    @property
    def never(self) -> bool:
        """Whether the gate is proved to be at most 1."""
        return self.log.nonpositive

    @property
    def low(self) -> float | None:
        """A lower bound of the logarithm, or None: a gate may be as small as it likes."""
        return None if self.log.low == -math.inf else float(self.log.low)


def growth(graph: Graph, log_id: int, known: Known) -> Growth:
    """Whether the gate whose logarithm is `log_id` can let a state grow. `known` has the intervals
    of older nodes of the graph; those of newer ones are found here."""
    return Growth(intervals(graph, dict(known.items()))[log_id])


# --- the logarithm of a node -------------------------------------------------------------------


def log_of(graph: Graph, id: int, known: Known) -> int | NoLog:
    """A node equal to log(node), added to the graph, with the same axes; or why there is none.

    known: `intervals(graph)`. A `NoLog` may leave nodes behind that nothing reads.
    """
    return _Logs(graph, known).log(id)


class _Logs(Builder):
    """The graph that is added to."""

    def __init__(self, graph: Graph, known: Known) -> None:
        super().__init__(graph)
        self.known = known

    def log(self, id: int) -> int | NoLog:
        """By the rule of the node's op; else of the computed value, if that is above 0."""
        node = self.graph[id]
        key = node.op.fn if isinstance(node.op, ir.Elementwise) else type(node.op)
        found = RULES[key](self, node) if key in RULES else None
        seen = node.type.dtype == "real" and not isinstance(node.op, ir.Result)
        blocked = isinstance(found, NoLog) and seen and self.interval(id).positive
        if found is None or blocked:
            found = self.computed(node)
        return found if isinstance(found, NoLog) else self._like(node, found)

    def interval(self, id: int) -> Interval:
        return self.known.get(id, ANY)

    def computed(self, node: Node) -> int | NoLog:
        """log of a value that is known to be positive."""
        found = self.interval(node.id)
        if found.positive:
            return self.fn("log", node.id)
        what = "is never above 0" if found.nonpositive else "may be 0 or negative"
        if found.nonnegative and not found.nonpositive:
            what = "may be exactly 0"
        hint = "write the gate as exp(...) or sigmoid(...), which are above 0"
        if isinstance(node.op, ir.Constant) and node.op.value.is_Symbol:
            hint = f"say `require {node.op.value} > 0`"
        if node.op in SUMS and node.name is None and "exactly 0" in what:
            hint += ", or, if masks make it, name it above the recurrence: `keep = 1 - m`"
        return NoLog(node.id, f"{_described(node)} {what}, where it has no logarithm: {hint}")

    def all(self, *ids: int) -> tuple[int, ...] | NoLog:
        """The logarithms of several nodes, or the first that has none."""
        logs = []
        for id in ids:
            found = self.log(id)
            if isinstance(found, NoLog):
                return found
            logs.append(found)
        return tuple(logs)

    def _like(self, node: Node, id: int) -> int:
        """The node as real numbers, with its axes in the order of the other node."""
        if self.graph[id].type.dtype != "real":
            id = self.fn("real", id)
        names = self.graph[id].type.names
        if names == node.type.names:
            return id
        return self.graph.add(ir.Contract((names,), tuple((a.name, a) for a in node.type.axes)), id)


def _described(node: Node) -> str:
    """A node as the reader of a spec knows it."""
    if isinstance(node.op, ir.Input | ir.Param):
        kind = "as it enters" if isinstance(node.op, ir.Input) else "a bare parameter"
        return f"`{node.op.name}`, {kind},"
    fn = node.op.fn if isinstance(node.op, ir.Elementwise | ir.Reduce) else type(node.op).__name__
    fn = f"the number {node.op.value}" if isinstance(node.op, ir.Constant) else f"`{fn.lower()}`"
    return fn if node.name is None else f"`{node.name}`, made by {fn},"


FOLDED: Mapping[str, Callable[..., Any]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "neg": operator.neg,
}
SUMS = tuple(ir.Elementwise(fn) for fn in (*FOLDED, "real"))
"""What a sum of products is made of."""


# --- rules -------------------------------------------------------------------------------------

Found = int | NoLog | None
"""The logarithm, why there is none, or None: as for a value of which only the interval is known."""


def _exp(logs: _Logs, node: Node) -> Found:
    """log(exp(e)) -> e"""
    return node.operands[0]


def _exp2(logs: _Logs, node: Node) -> Found:
    """log(exp2(e)) -> e * log(2)"""
    return logs.fn("mul", node.operands[0], logs.number(sympy.log(2)))


def _sigmoid(logs: _Logs, node: Node) -> Found:
    """log(sigmoid(x)) -> logsigmoid(x)"""
    return logs.fn("logsigmoid", node.operands[0])


def _complement(logs: _Logs, node: Node) -> Found:
    """log(1 - sigmoid(x)) -> logsigmoid(-x), and for other x from 0 to 1
    with a logarithm log(1 - x) -> logsigmoid(log(1 - x) - log(x)), which keeps the digits of a
    small x. Where rounding makes x 1, the slope through that logarithm is 0."""
    one, other = (logs.graph[operand] for operand in node.operands)
    inside = logs.interval(other.id)
    if one.op != ir.Constant(sympy.Integer(1)) or not inside.within(Interval(0, 1, False, True)):
        return _by_case(logs, node)
    if other.op == ir.Elementwise("sigmoid"):
        return logs.fn("logsigmoid", logs.fn("neg", other.operands[0]))
    own = node.id if inside.high < 1 else logs.fn("max", node.id, logs.number(SMALLEST))
    own, log = logs.fn("log", own), logs.log(other.id)
    return own if isinstance(log, NoLog) else logs.fn("logsigmoid", logs.fn("sub", own, log))


def _together(fn: str) -> Callable[[_Logs, Node], Found]:
    """log(a * b) -> log(a) + log(b), and so on: a function of the logarithms of the operands."""

    def rule(logs: _Logs, node: Node) -> Found:
        found = logs.all(*node.operands)
        return found if isinstance(found, NoLog) else logs.fn(fn, *found)

    return rule


def _root(factor: sympy.Expr) -> Callable[[_Logs, Node], Found]:
    """log(sqrt(a)) -> log(a) / 2"""

    def rule(logs: _Logs, node: Node) -> Found:
        found = logs.log(node.operands[0])
        return found if isinstance(found, NoLog) else logs.fn("mul", found, logs.number(factor))

    return rule


def _power(logs: _Logs, node: Node) -> Found:
    """log(a ** b) -> b * log(a)"""
    base, exponent = node.operands
    found = logs.log(base)
    return found if isinstance(found, NoLog) else logs.fn("mul", found, exponent)


def _where(logs: _Logs, node: Node) -> Found:
    """log(where(c, a, b)) -> where(c, log(a), log(b)); the number 0 may be chosen: a reset."""
    condition, *choices = node.operands
    found = []
    for choice in choices:
        zero = logs.graph[choice].op == ir.Constant(sympy.Integer(0))
        log = logs.number(-sympy.oo) if zero else logs.log(choice)
        if isinstance(log, NoLog):
            return log
        found.append(log)
    return logs.fn("where", condition, *found)


def _by_case(logs: _Logs, node: Node) -> Found:
    """log(m * a + (1 - m)) of m = where(c, 1, 0) -> where(c, log(a), 0): a sum that a choice of two
    numbers enters, as the choice of two sums."""
    mask = None if logs.interval(node.id).positive else _choice(logs.graph, node.id)
    if mask is None:
        return None
    condition, *numbers = logs.graph[mask].operands
    cases = [_with(logs, node.id, mask, number) for number in numbers]
    made = logs.graph[logs.fn("where", condition, *cases)]
    if {*made.type.names} != {*node.type.names}:
        return None
    found = _where(logs, made)
    return None if isinstance(found, NoLog) else found


def _choice(graph: Graph, id: int) -> int | None:
    """The first choice between two numbers that a sum of products is made of."""
    waiting, seen = [id], {id}
    while waiting:
        node = graph[waiting.pop()]
        if node.op == ir.Elementwise("where") and all(
            isinstance(graph[each].op, ir.Constant) for each in node.operands[1:]
        ):
            return node.id
        if node.op in SUMS:
            waiting += [each for each in node.operands if each not in seen]
            seen.update(node.operands)
    return None


def _with(logs: _Logs, id: int, mask: int, number: int) -> int:
    """A sum of products with a number in the place of a choice, without terms that are 0."""
    if id == mask:
        return number
    node = logs.graph[id]
    if node.op not in SUMS:
        return id
    made = [_with(logs, each, mask, number) for each in node.operands]
    if [*node.operands] == made:
        return id
    values = [getattr(logs.graph[each].op, "value", None) for each in made]
    fn = node.op.fn
    if fn == "real" or None not in values:
        return made[0] if fn == "real" else logs.number(FOLDED[fn](*values))
    if fn == "mul" and 0 in values:
        return logs.number(0)
    idle = 1 if fn == "mul" else 0
    if idle in values[1:] or (values[0] == idle and fn in ("add", "mul")):
        return made[0] if idle in values[1:] else made[1]
    return logs.fn(fn, *made)


def _through(logs: _Logs, node: Node) -> Found:
    """log(real(a)) -> log(a), and a value that is read elsewhere: the same op on the logarithm."""
    found = logs.log(node.operands[0])
    if isinstance(found, NoLog) or isinstance(node.op, ir.Elementwise):
        return found
    return logs.graph.add(node.op, found, *node.operands[1:])


def _shift(logs: _Logs, node: Node) -> Found:
    """log(a[t-n]) -> log(a)[t-n], and -oo at the first n tokens, whose a is 0: a reset."""
    found = logs.log(node.operands[0])
    if isinstance(found, NoLog):
        return found
    place = logs.graph.add(ir.Position(node.type.axis(node.op.stream)))
    first = logs.fn("lt", place, logs.number(node.op.steps))
    moved = logs.graph.add(node.op, found)
    return logs.fn("where", first, logs.number(-sympy.oo), moved)


def _constant(logs: _Logs, node: Node) -> Found:
    """The exact logarithm of a positive number."""
    positive = logs.interval(node.id).positive or node.op.value.is_positive
    return logs.number(sympy.log(node.op.value)) if positive else None


def _handed_on(logs: _Logs, node: Node) -> Found:
    """|a| and relu(a) of a positive a are a"""
    operand = node.operands[0]
    return logs.log(operand) if logs.interval(operand).positive else None


def _blocks(logs: _Logs, node: Node) -> Found:
    """Complete runs of tokens hold values and no zeros before the first token."""
    return None if node.op.stride is None else _through(logs, node)


def _segment(logs: _Logs, node: Node) -> Found:
    """log of a product from token to token -> the sum of the logarithms"""
    found = logs.log(node.operands[0]) if node.op.kind == "product" and not node.op.row else None
    if found is None or isinstance(found, NoLog):
        return found
    return logs.graph.add(replace(node.op, kind="sum"), found)


def _result(logs: _Logs, node: Node) -> Found:
    """The reason for a result of a region: it may be an exponential, whose argument is inside."""
    if logs.interval(node.id).low > 0:
        return None
    text = f"{_described(node)} comes from inside a layer, recurrence or attend"
    return NoLog(node.id, f"{text}: let that hand out the logarithm of the gate")


def _contract(logs: _Logs, node: Node) -> Found:
    """A product without a sum -> the sum of logarithms, each with its axes renamed."""
    kept = {label for label, _ in node.op.out}
    if any(label not in kept for labels in node.op.ins for label in labels):
        return None
    found = logs.all(*node.operands)
    if isinstance(found, NoLog):
        return found
    renamed = []
    for labels, log in zip(node.op.ins, found, strict=True):
        out = tuple((label, axis) for label, axis in node.op.out if label in labels)
        renamed.append(logs.graph.add(ir.Contract((labels,), out), log))
    return renamed[0] if len(renamed) == 1 else logs.fn("add", *renamed)


def _product(logs: _Logs, node: Node) -> Found:
    """log of a product over axes -> the sum of the logarithms"""
    if node.op.fn != "prod":
        return None
    found = logs.log(node.operands[0])
    return (
        found if isinstance(found, NoLog) else logs.graph.add(ir.Reduce("sum", node.op.axes), found)
    )


RULES: dict[str | type, Callable[[_Logs, Node], Found]] = {
    "exp": _exp,
    "exp2": _exp2,
    "sigmoid": _sigmoid,
    "sub": _complement,
    "add": _by_case,
    "mul": _together("add"),
    "div": _together("sub"),
    "max": _together("max"),
    "min": _together("min"),
    "sqrt": _root(sympy.Rational(1, 2)),
    "rsqrt": _root(sympy.Rational(-1, 2)),
    "pow": _power,
    "where": _where,
    "real": _through,
    "abs": _handed_on,
    "relu": _handed_on,
    ir.Gather: _through,
    ir.Contract: _contract,
    ir.Constant: _constant,
    ir.Reduce: _product,
    ir.Shift: _shift,
    ir.Window: _blocks,
    ir.Segment: _segment,
    ir.Result: _result,
}
"""How the logarithm of each function's result is made from what it is made of."""
