"""Layer IR -> an interval for every value: where it lies, whatever the inputs and parameters.

One small rule an op, in the table `RULES`. An op that is not in it may be any number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import reduce
from typing import Any

from archc.dims import Axis
from archc.functions.definitions import FUNCTIONS
from archc.functions.interval import (
    ANY,
    FINITE,
    INFINITE,
    ONE,
    UNIT,
    ZERO,
    Interval,
    div,
    hull,
    mul,
    point,
    product_of,
    square,
    sub,
    times,
)
from archc.ir import layer as ir
from archc.ir.graph import Graph, Node
from archc.ir.value_names import state_of
from archc.numerics.constants import COUNT, number_interval
from archc.numerics.structure import Structure
from archc.tables import complete

__all__ = ["ANY", "FINITE", "RULES", "Interval", "intervals"]

Given = Mapping[int, Interval] | Mapping[str, Interval] | Mapping[int | str, Interval]
Results = dict[str, Interval]


def intervals(graph: Graph, given: Given | None = None) -> dict[int, Interval]:
    """The interval of every node of a layer's graph or of a body.

    given: what is known, by the id of a node, or by the name of an input, a parameter, or a size or
    option (`{"tau": Interval(1, 16)}`). Without it inputs and parameters are any finite numbers,
    and states before a token any at all; what a layer requires of them is in `constants.required`.
    A region itself (Recurrence, Attend, Call) has the whole line.
    """
    walk = _Walk(graph, given or {})
    for node in graph:
        walk.known[node.id] = walk.interval(node)
    return walk.known


class _Walk:
    """One graph, the intervals found so far, and the results of its regions."""

    def __init__(self, graph: Graph, given: Given) -> None:
        self.graph = graph
        self.given: Mapping[Any, Interval] = given
        self.names = {name: found for name, found in given.items() if isinstance(name, str)}
        self.structure = Structure(graph)
        self.known: dict[int, Interval] = {}
        self.results: dict[int, Results] = {}

    def interval(self, node: Node) -> Interval:
        """The interval of a node whose operands have theirs."""
        if node.id in self.given:
            return self.given[node.id]
        rule = RULES.get(type(node.op))
        operands = [self.known[operand] for operand in node.operands]
        return ANY if rule is None else rule(self, node, *operands)

    def count(self, axes: Iterable[Axis]) -> Interval:
        """The number of elements along axes."""
        return reduce(mul, (number_interval(axis.size, self.names) for axis in axes), ONE)

    def inside(self, body: Graph, captures: Mapping[str, Interval]) -> Results:
        """The outputs of a body."""
        known = intervals(body, {**self.names, **captures})
        return {name: known[id] for name, id in body.outputs.items()}


# --- values that come from outside -------------------------------------------------------------


def outside(walk: _Walk, node: Node) -> Interval:
    """A state before the first token may be infinite (`-oo` is where a running maximum starts)."""
    if node.op.name in walk.names:
        return walk.names[node.op.name]
    if node.type.dtype == "bool":
        return UNIT
    return FINITE if state_of(node.op.name) is None else ANY


def constant(walk: _Walk, node: Node) -> Interval:
    return number_interval(node.op.value, walk.names)


def position(walk: _Walk, node: Node) -> Interval:
    """From 0; along a stream it goes on where an earlier call of the layer has stopped."""
    size = walk.count([node.op.axis])
    if node.op.axis.kind == "stream" or size.high in INFINITE or size.high < 1:
        return COUNT
    return Interval(0, size.high - 1)


def noise(walk: _Walk, node: Node, like: Interval) -> Interval:
    kept = div(ONE, sub(ONE, number_interval(node.op.p, walk.names)))
    return hull(ZERO, ONE, kept) if kept.positive else Interval(0)


# --- tokenwise algebra -------------------------------------------------------------------------


def elementwise(walk: _Walk, node: Node, *operands: Interval) -> Interval:
    """By function; sums and shares also by their structure, and x * x is not negative."""
    fn, structure = node.op.fn, walk.structure
    if fn == "mul" and len({structure.same[operand] for operand in node.operands}) == 1:
        return square(operands[0])
    found = FUNCTIONS[fn].range(*operands)
    if fn in ("mul", "div"):
        return structure.as_share(node.id, found, walk.known)
    return structure.tightened(node.id, found, walk.known) if fn in ("add", "sub", "neg") else found


def reduction(walk: _Walk, node: Node, value: Interval) -> Interval:
    """The mean, largest or smallest lies among the values; of no values a maximum is -inf. The log
    of a sum of exponentials is no less than the largest."""
    axes = walk.graph[node.operands[0]].type.axes
    count = walk.count(axis for axis in axes if axis.name in node.op.axes)
    if node.op.fn == "sum":
        return times(count, value)
    if node.op.fn == "prod":
        return product_of(count, value)
    if node.op.fn == "logsumexp":
        return Interval(value.low) if count.low >= 1 else ANY
    if node.op.fn == "mean" or count.low >= 1:
        return value
    return hull(value, point(INFINITE[node.op.fn == "min"]))


def contract(walk: _Walk, node: Node, *operands: Interval) -> Interval:
    """A sum of as many products as the summed axes have elements."""
    kept = {label for label, _ in node.op.out}
    summed: dict[str, Axis] = {}
    for labels, operand in zip(node.op.ins, node.operands, strict=True):
        axes = walk.graph[operand].type.axes
        summed |= {lb: axis for lb, axis in zip(labels, axes, strict=True) if lb not in kept}
    return times(walk.count(summed.values()), _product(walk, node, operands))


def _product(walk: _Walk, node: Node, operands: tuple[Interval, ...]) -> Interval:
    """One product: a square where both operands are one value with the same labels."""
    if len(operands) == 1:
        return operands[0]
    one = len({walk.structure.same[operand] for operand in node.operands}) == 1
    return square(operands[0]) if one and node.op.ins[0] == node.op.ins[1] else mul(*operands)


def scatter(walk: _Walk, node: Node, value: Interval, index: Interval) -> Interval:
    return times(COUNT, value)


# --- ops that look along a sequence ------------------------------------------------------------


def window(walk: _Walk, node: Node, value: Interval) -> Interval:
    return hull(value, ZERO) if node.op.stride is None else value


def segment(walk: _Walk, node: Node, value: Interval) -> Interval:
    """A sum or product of as many tokens as there are between two."""
    if node.op.kind == "sum":
        return times(COUNT, value)
    if node.op.row is None:
        return product_of(COUNT, value)
    return Interval(0) if value.nonnegative else ANY


# --- regions -----------------------------------------------------------------------------------


def region(walk: _Walk, node: Node, *operands: Interval) -> Interval:
    """A Recurrence's body with any states before the token, or an Attend's body."""
    names = [name if isinstance(name, str) else name[0] for name in node.op.captures]
    captures = dict(zip(names, operands, strict=False))
    walk.results[node.id] = walk.inside(node.op.body, captures)
    return ANY


def call(walk: _Walk, node: Node, *operands: Interval) -> Interval:
    """The callee, with its sizes and inputs; a layer that is an argument may do anything."""
    callee = node.op.callee
    given: dict[int | str, Interval] = {
        name: number_interval(size, walk.names) for name, size in node.op.sizes
    }
    for (_, input), operand in zip(callee.inputs, operands, strict=True):
        given[input.name] = operand
    known = intervals(callee.graph, given) if callee.kind != "argument" else {}
    outputs = callee.graph.outputs
    walk.results[node.id] = {name: known.get(id, ANY) for name, id in outputs.items()}
    return ANY


def result(walk: _Walk, node: Node, _: Interval) -> Interval:
    return walk.results.get(node.operands[0], {}).get(node.op.name, ANY)


RULES: dict[type, Callable[..., Interval]] = {
    ir.Input: outside,
    ir.Param: outside,
    ir.Constant: constant,
    ir.Position: position,
    ir.Delta: lambda walk, node: UNIT,
    ir.Noise: noise,
    ir.Elementwise: elementwise,
    ir.Reduce: reduction,
    ir.Contract: contract,
    ir.Gather: lambda walk, node, value, index: value,
    ir.Scatter: scatter,
    ir.Join: lambda walk, node, *operands: hull(*operands),
    ir.Reshape: lambda walk, node, value: value,
    ir.Top: lambda walk, node, value: UNIT,
    ir.Solve: lambda walk, node, matrix, vector: ANY,
    ir.Shift: lambda walk, node, value: hull(value, ZERO),
    ir.Window: window,
    ir.Softmax: lambda walk, node, *operands: UNIT,
    ir.Segment: segment,
    ir.Substitute: lambda walk, node, weights, right: ANY,
    ir.Recurrence: region,
    ir.Attend: region,
    ir.Result: result,
    ir.Call: call,
}
"""The interval of the result of each op."""
complete("`RULES` of archc/numerics/propagation.py", RULES, ir.OPS)
