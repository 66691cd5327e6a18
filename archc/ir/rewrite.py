"""Layer IR -> layer IR by rules: a rule says what replaces a node, the driver here does the rest.

The driver never changes the layer it is given. It swaps, drops what nothing needs any more, hands
the name and span of the old node on to the new one, and verifies the result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from archc.diagnostics import InternalError
from archc.ir import layer as ir
from archc.ir.graph import Graph, Node
from archc.ir.verify import verify

Rule = Callable[[Graph, Node], int | None]
"""The id of a node with the same value and type, which the rule has added or found, or None where
it declines. A rule may add nodes and changes none; what it adds in vain is dropped."""

Places = dict[int, tuple[int, ...]]
"""The order of nodes: one that takes the place of another stands there."""

MOST_SWEEPS = 100
"""Sweeps over a graph after which its rules are taken to undo one another."""


def rewrite(layer: ir.Layer, rules: Sequence[Rule]) -> ir.Layer:
    """The layer with the rules applied until none fires: in its graph, in bodies, and in the layers
    it calls (a layer that is called twice stays one). Raises InternalError if they never settle, or
    if one of them breaks the graph."""
    rewriter = _Rewriter(rules)
    new = rewriter.layer(layer)
    verify(new)
    return new


def rewrite_graph(graph: Graph, rules: Sequence[Rule]) -> Graph:
    """A graph, such as a body, with the rules applied until none fires; itself if none does."""
    return _Rewriter(rules).graph(graph)


def rewrite_attend(
    graph: Graph, node: Node, rule: Callable[[Graph, Node, ir.Attend], int | None]
) -> int | None:
    """An attend -> one with a rule of its body applied until it does not fire; None for any other
    node, and where it never does."""
    op = node.op
    if not isinstance(op, ir.Attend):
        return None
    body = rewrite_graph(op.body, [lambda body, inner: rule(body, inner, op)])
    return None if body is op.body else graph.add(replace(op, body=body), *node.operands)


class _Rewriter:
    """The rules, and the graphs and layers that are already done."""

    def __init__(self, rules: Sequence[Rule]):
        self.rules: tuple[Rule, ...] = (self._inside, *rules)
        self.layers: dict[int, ir.Layer] = {}
        self.settled: dict[int, Graph] = {}  # by id; holding the graph keeps its id from reuse

    def layer(self, layer: ir.Layer) -> ir.Layer:
        """The layer with rules applied; itself if none fires."""
        if id(layer) not in self.layers:
            graph = self.graph(layer.graph)
            new = layer if graph is layer.graph else replace(layer, graph=graph)
            self.layers[id(layer)] = new
        return self.layers[id(layer)]

    def graph(self, original: Graph) -> Graph:
        """The graph with rules applied; itself if none fires."""
        if id(original) in self.settled:
            return original
        graph, sweeps = original.copy(), 0
        places: Places = {node.id: (node.id,) for node in graph}
        while self._sweep(graph, places):
            sweeps += 1
            if sweeps == MOST_SWEEPS:
                raise InternalError("the rules of a pass undo one another")
        new = graph.renumbered(places.__getitem__) if sweeps else original
        self.settled[id(new)] = new
        return new

    def _sweep(self, graph: Graph, places: Places) -> bool:
        """Ask every rule about every node, readers before what they read; whether one fired."""
        fired = False
        for id in [node.id for node in graph][::-1]:
            for rule in self.rules:
                if id not in graph:
                    break
                fresh = graph.fresh
                new = rule(graph, graph[id])
                if new is not None:
                    for added in range(fresh, graph.fresh):
                        places[added] = (*places[id], added)
                    _swap(graph, graph[id], new, fresh, rule)
                    fired = True
                elif graph.fresh > fresh:
                    _prune(graph)
        return fired

    def _inside(self, graph: Graph, node: Node) -> int | None:
        """A region whose body (or callee) the rules change -> the region with the new one."""
        changes: dict[str, Any] = {}
        if isinstance(node.op, ir.Recurrence | ir.Attend):
            body = self.graph(node.op.body)
            changes = {} if body is node.op.body else {"body": body}
            decode = getattr(node.op, "decode", None)
            if decode is not None and self.graph(decode) is not decode:
                changes["decode"] = self.graph(decode)
        elif isinstance(node.op, ir.Call):
            callee = self.layer(node.op.callee)
            changes = {} if callee is node.op.callee else {"callee": callee}
        return graph.add(replace(node.op, **changes), *node.operands) if changes else None


def _swap(graph: Graph, old: Node, new: int, fresh: int, rule: Rule) -> None:
    """Let `new` take the place of `old`; the nodes from `fresh` on get its span, `new` its name."""
    name = getattr(rule, "__name__", repr(rule))
    if graph[new].type != old.type:
        raise InternalError(f"rule {name}: {old.type} would become {graph[new].type}")
    for id in range(fresh, graph.fresh):
        if id in graph and graph[id].span is None:
            graph.rename(id, graph[id].name, old.span)
    if old.name is not None and graph[new].name is None:
        graph.rename(new, old.name, graph[new].span)
    graph.substitute(old.id, new)
    _prune(graph)


def in_order(graph: Graph, places: Mapping[int, float] | None = None) -> Graph:
    """A graph that was changed, without what nothing reads but its inputs; what is new stands in
    the `places` of what it is there for, so that kernels make all else in the order they did."""
    known = places or {}
    graph.prune(graph.ids(ir.Input))
    return graph.renumbered(lambda id: known.get(id, id))


def replace_walk(
    graph: Graph, walk: Node, body: Graph, captured: Mapping[str, int]
) -> dict[int, int]:  # fmt: skip
    """Put a Recurrence with another body in the place of one, with what that reads of `captured`;
    the new nodes by those that they stand for."""
    body.prune()
    read = {node.op.name for node in body if isinstance(node.op, ir.Input)}
    kept = {name: id for name, id in captured.items() if name in read}
    starts = walk.operands[len(walk.op.captures) :]
    op = replace(walk.op, captures=tuple(kept), body=body.renumbered(lambda id: id))
    new = {walk.id: graph.add(op, *kept.values(), *starts, name=walk.name, span=walk.span)}
    for user in graph.users(walk.id):
        result = graph[user]
        new[user] = graph.add(result.op, new[walk.id], name=result.name, span=result.span)
        graph.substitute(user, new[user])
    return new


def _prune(graph: Graph) -> None:
    """Drop what nothing reads, but for inputs and parameters, which are the face of a layer."""
    graph.prune(graph.ids(ir.Input, ir.Param))
