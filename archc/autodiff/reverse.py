"""Layer IR -> layer IR: the gradient of a graph, by one walk from its outputs to its inputs.

The graph that the walk makes has the forward's nodes, with their ids, and behind them the
cotangents. `keep.py` cuts it in two: what the forward saves, and the backward.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any

from archc.autodiff import regions, scans, solutions, tensor
from archc.autodiff.elementwise import elementwise
from archc.autodiff.gradient_builder import Builder
from archc.autodiff.keep import Gradient, divide
from archc.ir import chunk as ck
from archc.ir import layer as ir
from archc.ir.graph import Graph, Node
from archc.ir.value_names import cotangent
from archc.tables import complete


def gradient(
    forward: Graph,
    wanted: Sequence[str],
    given: Sequence[str],
    save: bool = True,
    stored: Collection[str] = (),
    again: tuple[type, ...] = (),
    never: Collection[int] = (),
) -> Gradient:
    """The gradient graph of `forward`: from the cotangents of the outputs `given` (inputs
    `d.<output>`) to those of the inputs `wanted` (outputs `d.<input>`, zeros for an input on which
    nothing depends). Without `save` it computes every value anew that it needs of the forward.
    `stored`: inputs that must be stored if the backward reads them, as states in a loop. `again`:
    ops that are computed again whatever they cost. `never`: values that are not saved.

    Raises NoGradient where an op has no derivative, ValueError for a name that is not in the graph
    or that is no real.
    """
    graph = forward.copy()
    inputs = {node.op.name: node for node in graph if isinstance(node.op, ir.Input)}
    for name in (*wanted, *given):
        found = inputs.get(name) if name in wanted else graph[graph.outputs[name]]
        if found is None or found.type.dtype != "real":
            raise ValueError(f"`{name}` is no real value of the graph")
    builder = Builder(graph, _active(graph, [inputs[name].id for name in wanted]), gradient)
    walk = _Walk(builder)
    for name in given:
        output = graph[graph.outputs[name]]
        builder.span = output.span
        walk.arrive(output.id, builder.add(ir.Input(cotangent(name), output.type)))
    for node in tuple(forward)[::-1]:
        walk.visit(graph[node.id])
    outputs = {cotangent(name): walk.leave(inputs[name]) for name in wanted}
    graph.outputs = outputs
    unreached = tuple(name for name in wanted if inputs[name].id not in walk.arrived)
    return replace(divide(forward, graph, save, stored, again, never), unreached=unreached)


def _active(graph: Graph, wanted: Sequence[int]) -> set[int]:
    """The values that depend on a wanted input through reals (or a region) alone."""
    found = set(wanted)
    for node in graph:
        passes = node.type.dtype == "real" and not isinstance(node.op, PASSES_NOTHING)
        if passes and any(operand in found for operand in node.operands):
            found.add(node.id)
    return found


class _Walk:
    """The cotangents that have arrived at each value."""

    def __init__(self, builder: Builder):
        self.builder = builder
        self.arrived: dict[int, list[int]] = {}
        self.results: dict[int, dict[str, int]] = {}  # of regions

    def arrive(self, id: int, d: int) -> None:
        """Note a cotangent of a value that needs it."""
        if id in self.builder.active:
            self.arrived.setdefault(id, []).append(d)

    def visit(self, node: Node) -> None:
        """Hand the cotangent of a node on to its operands."""
        if node.id not in self.arrived and node.id not in self.results:
            return
        self.builder.span = node.span
        if isinstance(node.op, REGIONS):
            found = RULES[type(node.op)](self.builder, node, self.results[node.id])
        else:
            d = self.total(node)
            if isinstance(node.op, ir.Result):
                self.read(node, d)
                return
            found = RULES[type(node.op)](self.builder, node, d)
        for operand, cotangent_ in zip(node.operands, found, strict=True):
            if cotangent_ is not None:
                self.arrive(operand, cotangent_)

    def read(self, result: Node, d: int) -> None:
        """Note the cotangent of a region's result, which several nodes may read."""
        results = self.results.setdefault(result.operands[0], {})
        name = result.op.name
        results[name] = self.builder.sum([results[name], d]) if name in results else d

    def total(self, node: Node) -> int:
        """The sum of what arrived at a value, named after it."""
        graph = self.builder.graph
        d = self.builder.sum(self.arrived[node.id])
        name = node.name or getattr(node.op, "held", "")
        if name and graph[d].name is None and not _is_input(graph[d]):
            graph.rename(d, f"d_{name}", node.span)
        return d

    def leave(self, input: Node) -> int:
        """The cotangent of an input, with its axes; zeros if none arrived."""
        self.builder.span = input.span
        if input.id not in self.arrived:
            return self.builder.zeros(input.type)
        return self.builder.exactly(self.total(input), input.type)


def _is_input(node: Node) -> bool:
    return isinstance(node.op, ir.Input)


Rule = Callable[[Builder, Node, Any], list[int | None]]

REGIONS = (ir.Recurrence, ir.Attend, ir.Call)
"""Ops with several results, whose rules get the cotangents by name."""

RULES: dict[type, Rule] = {
    ir.Input: tensor.nothing,
    ir.Param: tensor.nothing,
    ir.Constant: tensor.nothing,
    ir.Position: tensor.nothing,
    ir.Delta: tensor.nothing,
    ir.Noise: tensor.nothing,  # its operand gives nothing but a shape
    ir.Elementwise: elementwise,
    ir.Reduce: tensor.reduce,
    ir.Contract: tensor.contract,
    ir.Gather: tensor.gather,
    ir.Scatter: tensor.scatter,
    ir.Join: tensor.join,
    ir.Reshape: tensor.reshape,
    ir.Top: tensor.nothing,
    ir.Solve: tensor.solve,
    ir.Shift: tensor.shift,
    ir.Window: tensor.window,
    ir.Softmax: tensor.softmax,
    ir.Segment: tensor.segment,
    ir.Substitute: tensor.substitute,
    ir.Recurrence: regions.recurrence,
    ir.Attend: regions.attend,
    ir.Result: tensor.nothing,  # the walk hands its cotangent to the region
    ir.Call: regions.call,
    **{op: lambda b, node, d: node.op.gradient(b, node, d) for op in ck.CHUNK_OPS},
    ck.Last: regions.last,
    ck.Scan: scans.scan,
    ck.Inverse: solutions.inverse,
}
"""The rule of each op: a chunk op has its own, where the graph around tells no more."""
complete("`RULES` of archc/autodiff/reverse.py", RULES, (*ir.OPS, *ck.CHUNK_OPS))

PASSES_NOTHING = (ir.Noise, ir.Top, ck.Detach)
"""Ops behind which no value depends on their operands, for a gradient."""
