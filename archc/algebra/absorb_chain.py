"""Values that are made of another value of the same token and of weights alone, and linearly so.

`k = c @ W + b` is such a value of c, and c may be one of x: a chain. What goes through a chain can
be kept instead of what comes out, and the chain can be applied where it costs least.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from archc.ir import layer as ir
from archc.ir.graph import Graph, Node


@dataclass(frozen=True)
class Chain:
    """Nodes that lead from `latent` to a value, in dataflow order; each reads the one before."""

    latent: int
    steps: tuple[int, ...]


def chains(graph: Graph, value: int) -> Iterator[Chain]:
    """The chains that lead to a value, the shortest first."""
    steps: tuple[int, ...] = ()
    while (latent := _latent(graph, graph[value])) is not None:
        steps = (value, *steps)
        value = latent
        yield Chain(latent, steps)


def is_fixed(graph: Graph, id: int) -> bool:
    """Whether a value is the same for every token: made of parameters, numbers and dims alone."""
    every = [graph[each] for each in (id, *graph.ancestors(id))]
    return all(
        not isinstance(node.op, ir.Input | ir.Noise)
        and all(axis.kind == "dim" for axis in node.type.axes)
        for node in every
    )


def has_params(graph: Graph, id: int) -> bool:
    """Whether a value is made of parameters, not of numbers alone."""
    return any(isinstance(graph[each].op, ir.Param) for each in (id, *graph.ancestors(id)))


def _latent(graph: Graph, node: Node) -> int | None:
    """The operand in which a node is linear (up to a bias), if all its others are fixed."""
    if node.type.dtype != "real" or not _is_linear(node):
        return None
    moving = [place for place, id in enumerate(node.operands) if not is_fixed(graph, id)]
    if len(moving) != 1:
        return None
    (place,) = moving
    latent = graph[node.operands[place]]
    divides = node.op == ir.Elementwise("div") and place == 1
    streams = {axis for axis in latent.type.axes if axis.kind != "dim"}
    kept = streams == {axis for axis in node.type.axes if axis.kind != "dim"}
    by_index = isinstance(node.op, ir.Gather) and place == 1
    if latent.type.dtype != "real" or divides or by_index or not kept:
        return None
    return latent.id


def _is_linear(node: Node) -> bool:
    """Whether an op is linear in each of its operands, or adds them."""
    if isinstance(node.op, ir.Elementwise):
        return node.op.fn in ("add", "sub", "mul", "div", "neg")
    return isinstance(node.op, ir.Contract | ir.Gather) or node.op == ir.Reduce(
        "sum", getattr(node.op, "axes", ())
    )
