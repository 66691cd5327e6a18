"""Both forms of a recurrence on random numbers: the loop over tokens, and the derived one."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from archc.algebra.simplify import simplify
from archc.compile import in_logs
from archc.dims import T_SEEN, TIME, at
from archc.functions.interval import Interval
from archc.ir import chunk as ck
from archc.ir import layer as ir
from archc.ir.graph import Graph, Node, Type
from archc.ir.meaning import evaluate_graph
from archc.ir.typing import layer_graph
from archc.numerics.propagation import intervals
from archc.recurrence.chunk.chunked import studies
from archc.recurrence.chunk.derived import Derived

SIZES = {"K": 4, "V": 3, "H": 2, "D": 3, "N": 2, "d": 4}
"""Sizes by name; others are 2."""


def recurrences(layer: ir.Layer) -> list[tuple[Graph, Node, Derived]]:
    """The recurrences of a layer, simplified, with decays as logarithms, and what is derived."""
    ready = in_logs(simplify(layer))
    return [(each.graph, node, derived) for each, node, derived in studies(ready)]


def step_graph(graph: Graph, node: Node) -> Graph:
    """The loop alone: inputs and outputs as a chunked form has them."""
    step, op = layer_graph(), node.op
    operands = dict(zip(op.captures, node.operands, strict=False))
    ids = [step.add(ir.Input(name, graph[id].type), name=name) for name, id in operands.items()]
    starts = [step.add(ir.Input(ck.start(s.name), Type(s.axes))) for s in op.states]
    recurrence = step.add(op, *ids, *starts)
    for name in wanted(graph, node):
        step.outputs[name] = step.add(ir.Result(name), recurrence)
    for state, start in zip(op.states, starts, strict=True):
        after = step.add(ir.Result(state.name), recurrence)
        step.outputs[ck.final(state.name)] = step.add(ck.Last(op.stream.name), after, start)
    return step


def wanted(graph: Graph, node: Node) -> list[str]:
    """The results that something reads."""
    read = {graph[user].op.name for user in graph.users(node.id)}
    return [name for name in node.op.body.outputs if name in read]


def sizes_of(graph: Graph, tokens: int, chunk: int) -> dict[str, int]:
    """A number for every symbol of a graph."""
    sizes = {axis.size for node in graph for axis in node.type.axes}
    found = {str(symbol) for size in sizes for symbol in size.free_symbols}
    for node in graph:
        if isinstance(node.op, ir.Constant):
            found |= {str(symbol) for symbol in node.op.value.free_symbols}
    known = {name: SIZES.get(name, 2) for name in sorted(found)}
    return known | {"batch": 2, TIME.size.name: tokens, T_SEEN.name: tokens, "chunk": chunk}


def random_inputs(
    graph: Graph, sizes: Mapping[str, int], known: Mapping[str, Interval], seed: int = 0
) -> dict[str, Tensor]:
    """Random inputs in float64, of the sign that their intervals say; a running maximum has seen
    nothing yet."""
    generator = torch.Generator().manual_seed(seed)
    found = {}
    for node in graph:
        if isinstance(node.op, ir.Input):
            shape = [int(at(axis.size, sizes)) for axis in node.type.axes]
            x = torch.randn(shape, generator=generator, dtype=torch.float64)
            lies = known.get(node.op.name, Interval())
            x = -x.abs() if lies.nonpositive else x.abs() if lies.nonnegative else x
            x = x > 0 if node.type.dtype == "bool" else x
            if node.op.name == "m[0]":
                x = torch.full_like(x, -torch.inf)
            elif node.op.name == "A[0]":  # a matrix that is solved with
                x = x @ x.mT
            found[node.op.name] = x
    return found


def both(
    graph: Graph, node: Node, form: Graph, tokens: int, chunk: int, seed: int = 0
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """What the loop gives, and what the derived form gives."""
    captured = dict(zip(node.op.captures, node.operands, strict=False))
    lies = intervals(graph)
    known = {name: lies[id] for name, id in captured.items()}
    step = step_graph(graph, node)
    sizes = sizes_of(step, tokens, chunk) | sizes_of(form, tokens, chunk)
    inputs = random_inputs(step, sizes, known, seed)
    return evaluate_graph(step, inputs, sizes), evaluate_graph(form, inputs, sizes)


def furthest(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> float:
    """The largest difference between values of the same name, against the largest value."""
    found = [0.0]
    for name, x in one.items():
        if x.numel():
            same = (x == other[name]) | (x - other[name]).isfinite()
            assert same.all(), f"{name} is not finite where it should be"
            difference = torch.where(x == other[name], 0.0, (x - other[name]).abs()).max()
            size = x[x.isfinite()].abs().max() if x.isfinite().any() else torch.ones(())
            found.append(float(difference / size.clamp(min=1e-6)))
    return max(found)
