"""A region's part of a layer as a graph by itself."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

import sympy

from archc.ir import layer as ir
from archc.ir.builder import Builder
from archc.ir.free_names import numbered
from archc.ir.graph import Graph, Node, Type
from archc.ir.of_parameters import is_of_parameters
from archc.ir.token_region import Past
from archc.ir.typing import layer_graph
from archc.regions.token_ops import is_free


@dataclass
class Body:
    """A region's graph under construction: `ids` of the layer's nodes in it, the names of its
    inputs and outputs with their nodes, its pasts, and the seeds of its dropouts."""

    home: Graph
    members: frozenset[int]
    stream: str
    graph: Graph = field(default_factory=layer_graph)
    ids: dict[int, int] = field(default_factory=dict)
    reads: dict[str, int] = field(default_factory=dict)
    makes: dict[str, int] = field(default_factory=dict)
    pasts: dict[str, Past] = field(default_factory=dict)
    seeds: dict[str, int] = field(default_factory=dict)

    def fill(self, name: str) -> None:
        """All members in dataflow order, and what leaves."""
        for node in self.home:
            if node.id in self.members:
                self._add(node)
        for node in self.home:
            if node.id in self.members and leaves(self.home, self.members, node.id):
                called = _own_name(node) or (name if not self.makes else "made")
                self.makes[self._fresh(called)] = node.id
        self.graph.outputs = {output: self.ids[id] for output, id in self.makes.items()}

    def _add(self, node: Node) -> None:
        operands = [self.value(operand) for operand in node.operands]
        if isinstance(node.op, ir.Shift | ir.Window):
            operands = [self._after_past(node, operands[0])]
        if isinstance(node.op, ir.Noise):
            operands = [operands[0], self._seed(node)]
        self.ids[node.id] = self.graph.add(node.op, *operands, name=node.name, span=node.span)

    def value(self, id: int) -> int:
        """A node of the layer in the region: its own, one made again for nothing, or an input."""
        if id in self.ids:
            return self.ids[id]
        node = self.home[id]
        if is_free(self.home, id) or is_of_parameters(self.home, id):
            operands = [self.value(operand) for operand in node.operands]
            self.ids[id] = self.graph.add(node.op, *operands, name=node.name, span=node.span)
        else:
            name = self._fresh(input_name(self.home, id, self.members))
            self.reads[name] = id
            self.ids[id] = self.graph.add(ir.Input(name, node.type), span=node.span)
        return self.ids[id]

    def _after_past(self, node: Node, x: int) -> int:
        """The value that an op reads which looks back: before the first token, the tokens kept."""
        type = self.graph[x].type
        steps = node.op.steps if isinstance(node.op, ir.Shift) else node.op.width.size - 1
        name = self._fresh(f"{input_name(self.home, node.operands[0], self.members)}_past")
        self.pasts[name] = Past(node.id, sympy.Integer(0) + steps)
        past = self.graph.add(ir.Input(name, type), span=node.span)
        position = self.graph.add(ir.Position(type.axis(self.stream)))
        make = Builder(self.graph)
        there = make.fn("ge", position, make.number(0))
        return Builder(self.graph, node.span).fn("where", there, x, past)

    def _seed(self, node: Node) -> int:
        """The seed of a dropout."""
        name = self._fresh("seed")
        self.seeds[name] = node.id
        return self.graph.add(ir.Input(name, Type((), "int")), span=node.span)

    def _fresh(self, name: str) -> str:
        """A name that nothing has which enters or leaves."""
        return numbered(name, {*self.reads, *self.makes, *self.pasts, *self.seeds})


def leaves(home: Graph, members: Collection[int], id: int) -> bool:
    """Whether something outside of a region reads a value of it."""
    outside = any(user not in members for user in home.users(id))
    return outside or id in home.outputs.values()


def input_name(home: Graph, id: int, members: Collection[int]) -> str:
    """The name of a value that enters a region: its own, or one after the op that reads it."""
    node = home[id]
    if isinstance(node.op, ir.Input | ir.Param | ir.Result):
        return node.op.name
    return _own_name(node) or f"{nearest(home, id, members)}_raw"


def _own_name(node: Node) -> str | None:
    """The name of a value, or a word for what it is."""
    return node.name or ("chosen" if isinstance(node.op, ir.Top) else None)


def nearest(home: Graph, id: int, members: Collection[int]) -> str:
    """The name of the nearest named value of a region that a value goes into."""
    row, seen = [id], {id}
    while row:
        for each in row:
            if each in members and home[each].name:
                return str(home[each].name)
        row = sorted({u for each in row for u in home.users(each) if u in members} - seen)
        seen |= {*row}
    return "x"
