"""The container of every IR level: a graph of nodes in dataflow order. Only this file has networkx.

A node is an op, its operands (ids of earlier nodes), the axes and dtype of its value, a name if the
spec gave one, and the span it came from. Ids are never reused; iteration is in one and
the same dataflow order.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

import networkx as nx

from archc.dims import Axis
from archc.limits import AXES, NODES, over_budget
from archc.source import Span

Op = TypeVar("Op")
SHORTER = (
    "write fewer steps, or several layers",
    "if it is about a recurrence: `chunk: sequential` leaves it a loop over the tokens",
)


@dataclass(frozen=True)
class Type:
    """Shape and kind of a value: batch, then streams, then dims; dtype is real, int or bool."""

    axes: tuple[Axis, ...]
    dtype: str = "real"

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the axes, in order."""
        return tuple(axis.name for axis in self.axes)

    def axis(self, name: str) -> Axis:
        """The axis of that name; KeyError if there is none."""
        for axis in self.axes:
            if axis.name == name:
                return axis
        raise KeyError(name)


@dataclass(frozen=True)
class Node(Generic[Op]):
    """One value of the graph."""

    id: int
    op: Op
    operands: tuple[int, ...]
    type: Type
    name: str | None = None
    span: Span | None = None


class Graph(Generic[Op]):
    """A directed acyclic multigraph of nodes with named outputs.

    `infer(op, operand_nodes)` gives the type of a new node: a graph cannot hold an ill-typed one.
    """

    def __init__(self, infer: Callable[[Any, Sequence[Node]], Type]):
        self.infer = infer
        self.outputs: dict[str, int] = {}
        self._graph: nx.MultiDiGraph = nx.MultiDiGraph()
        self._next = 0
        self._order: tuple[int, ...] | None = None  # dataflow order, as long as no edge changes

    def add(self, op: Op, *operands: int, name: str | None = None, span: Span | None = None) -> int:
        """Append a node and return its id."""
        if len(self) >= NODES:
            raise over_budget(f"this takes more than {NODES} values at once", span, *SHORTER)
        type = self.infer(op, [self[operand] for operand in operands])
        if len(type.axes) > AXES:
            found = f"{len(type.axes)} dims, batch and time among them, and at most {AXES} are done"
            raise over_budget(found, span)
        node = Node(self._next, op, operands, type, name, span)
        self._next += 1
        self._order = None
        self._graph.add_node(node.id, node=node)
        self._graph.add_edges_from((operand, node.id) for operand in operands)
        return node.id

    def __getitem__(self, id: int) -> Node[Op]:
        return self._graph.nodes[id]["node"]

    def __contains__(self, id: int) -> bool:
        return id in self._graph

    def __len__(self) -> int:
        return len(self._graph)

    def __iter__(self) -> Iterator[Node[Op]]:
        """Nodes in a topological order that depends on nothing but the graph."""
        if self._order is None:
            self._order = tuple(nx.lexicographical_topological_sort(self._graph))
        return map(self.__getitem__, self._order)

    def copy(self) -> Graph[Op]:
        """The same graph, to be changed on its own; ids stay. Bodies inside ops are shared."""
        copy: Graph[Op] = Graph(self.infer)
        copy.outputs, copy._graph, copy._next = dict(self.outputs), self._graph.copy(), self._next
        copy._order = self._order
        return copy

    def renumbered(self, key: Callable[[int], Any]) -> Graph[Op]:
        """The same graph with new ids: in dataflow order and, where there is a choice, by key."""
        new: Graph[Op] = Graph(self.infer)
        ids: dict[int, int] = {}
        for old in nx.lexicographical_topological_sort(self._graph, key=key):
            node = self[old]
            operands = (ids[operand] for operand in node.operands)
            ids[old] = new.add(node.op, *operands, name=node.name, span=node.span)
        new.outputs = {name: ids[id] for name, id in self.outputs.items()}
        return new

    @property
    def fresh(self) -> int:
        """The id that the next node gets; all ids so far are smaller."""
        return self._next

    def acyclic(self) -> bool:
        """Whether no value depends on itself, as it must be."""
        return nx.is_directed_acyclic_graph(self._graph)

    def users(self, id: int) -> tuple[int, ...]:
        """Nodes that read this one, each once, in id order."""
        return tuple(sorted(set(self._graph.successors(id))))

    def ancestors(self, id: int) -> frozenset[int]:
        """Every node this one depends on."""
        return frozenset(nx.ancestors(self._graph, id))

    def descendants(self, id: int) -> frozenset[int]:
        """Every node that depends on this one."""
        return frozenset(nx.descendants(self._graph, id))

    def rename(self, id: int, name: str | None, span: Span | None = None) -> None:
        """Give a node its name in the spec (and the span of the statement that named it)."""
        node = self[id]
        self._graph.nodes[id]["node"] = replace(node, name=name, span=span or node.span)

    def replace_op(self, id: int, op: Op) -> None:
        """Give a node another op of the same type."""
        node = self[id]
        self._graph.nodes[id]["node"] = replace(node, op=op)

    def substitute(self, old: int, new: int) -> None:
        """Let every reader of `old`, and every output, read `new` instead."""
        self._order = None
        for user in self.users(old):
            if user == new:
                continue
            node = self[user]
            operands = tuple(new if operand == old else operand for operand in node.operands)
            self._graph.remove_edges_from([(old, user)] * node.operands.count(old))
            self._graph.add_edges_from([(new, user)] * node.operands.count(old))
            self._graph.nodes[user]["node"] = replace(node, operands=operands)
        self.outputs = {key: new if id == old else id for key, id in self.outputs.items()}

    def prune(self, keep: Sequence[int] = ()) -> None:
        """Drop nodes that no output (and nothing in `keep`) depends on."""
        live = set(self.outputs.values()) | set(keep)
        for id in tuple(live):
            live |= self.ancestors(id)
        self._order = None
        self._graph.remove_nodes_from([id for id in self._graph if id not in live])


def components(reads: Mapping[str, Collection[str]]) -> list[list[str]]:
    """Groups of names that read one another, each after those it reads; names sorted within."""
    graph: nx.DiGraph = nx.DiGraph()
    graph.add_nodes_from(reads)
    graph.add_edges_from((other, name) for name, others in reads.items() for other in others)
    condensed = nx.condensation(graph)
    order = nx.lexicographical_topological_sort(
        condensed, key=lambda group: min(condensed.nodes[group]["members"])
    )
    return [sorted(condensed.nodes[group]["members"]) for group in order]


def cheapest_cut(
    weights: Mapping[int, int],
    reads: Mapping[int, Sequence[int]],
    sources: Collection[int],
    sinks: Collection[int],
) -> list[int]:
    """The nodes of least total weight that stand on every path from a source to a sink, ends
    included; of several such sets that which is nearest to the sinks. `reads` gives each node the
    nodes before it."""
    graph: nx.DiGraph = nx.DiGraph()
    graph.add_nodes_from(("start", "end"))
    for node, weight in weights.items():
        graph.add_edge((node, 0), (node, 1), capacity=weight)
    for node, others in reads.items():
        graph.add_edges_from(((other, 1), (node, 0)) for other in others)
    graph.add_edges_from(("start", (node, 0)) for node in sources)
    graph.add_edges_from(((node, 1), "end") for node in sinks)
    _, (before, after) = nx.minimum_cut(graph, "start", "end")
    return [node for node in weights if (node, 0) in before and (node, 1) in after]
