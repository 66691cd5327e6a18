"""The container of every IR level: a graph of nodes in dataflow order. Only this file has networkx,
which takes a quarter of a second to import: its two functions do.

A node is an op, its operands (ids of earlier nodes), the axes and dtype of its value, a name if the
spec gave one, and the span it came from. Ids are never reused; iteration is in one and
the same dataflow order.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from heapq import heapify, heappop, heappush
from typing import Any, Generic, TypeVar

from archc.diagnostics import InternalError
from archc.dims import Axis, free_symbols
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

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of the axes, in order."""
        return tuple(axis.name for axis in self.axes)

    @cached_property
    def symbols(self) -> frozenset[Any]:
        """The sizes and options that the sizes of the axes name."""
        return frozenset().union(*(free_symbols(axis.size) for axis in self.axes))

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
    `version` counts changes of nodes, so that what was found of a graph need not be found again.
    """

    def __init__(self, infer: Callable[[Any, Sequence[Node]], Type]):
        self.infer = infer
        self.outputs: dict[str, int] = {}
        self._nodes: dict[int, Node] = {}
        self._users: dict[int, dict[int, None]] = {}
        self._next = 0
        self._order: list[int] | None = []  # dataflow order, as long as it is known
        self.version = 0

    def add(self, op: Op, *operands: int, name: str | None = None, span: Span | None = None) -> int:
        """Append a node and return its id."""
        if len(self) >= NODES:
            raise over_budget(f"this takes more than {NODES} values at once", span, *SHORTER)
        type = self.infer(op, [self._nodes[operand] for operand in operands])
        if len(type.axes) > AXES:
            found = f"{len(type.axes)} dims, batch and time among them, and at most {AXES} are done"
            raise over_budget(found, span)
        id = self._next
        self._next += 1
        self._nodes[id], self._users[id] = Node(id, op, operands, type, name, span), {}
        for operand in operands:
            self._users[operand][id] = None
        if self._order is not None:
            self._order.append(id)  # of the largest id, and read by nothing: always the last
        self.version += 1
        return id

    def __getitem__(self, id: int) -> Node[Op]:
        return self._nodes[id]

    def __contains__(self, id: int) -> bool:
        return id in self._nodes

    def __len__(self) -> int:
        return len(self._nodes)

    def __iter__(self) -> Iterator[Node[Op]]:
        """Nodes in a topological order that depends on nothing but the graph; those that there are
        when it begins."""
        if self._order is None:
            self._order = self._sorted(None)
        return map(self._nodes.__getitem__, tuple(self._order))

    def _sorted(self, key: Callable[[int], Any] | None) -> list[int]:
        """The ids in dataflow order and, where there is a choice, by key and id."""
        waiting = {id: len(set(node.operands)) for id, node in self._nodes.items()}
        ready = [(id if key is None else key(id), id) for id, count in waiting.items() if not count]
        heapify(ready)
        found = []
        while ready:
            _, id = heappop(ready)
            found.append(id)
            for user in self._users[id]:
                waiting[user] -= 1
                if not waiting[user]:
                    heappush(ready, (user if key is None else key(user), user))
        if len(found) < len(self._nodes):
            raise InternalError("a value depends on itself")
        return found

    def copy(self) -> Graph[Op]:
        """A copy of the graph, to be changed on its own; ids stay. Bodies inside ops are shared."""
        copy: Graph[Op] = Graph(self.infer)
        copy.outputs, copy._nodes, copy._next = dict(self.outputs), dict(self._nodes), self._next
        copy._users = {id: dict(users) for id, users in self._users.items()}
        copy._order = None if self._order is None else [*self._order]
        return copy

    def renumbered(self, key: Callable[[int], Any]) -> Graph[Op]:
        """The graph with new ids: in dataflow order and, where there is a choice, by key."""
        new: Graph[Op] = Graph(self.infer)
        ids: dict[int, int] = {}
        for old in self._sorted(key):
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
        try:
            self._order = self._order or self._sorted(None)
        except InternalError:
            return False
        return True

    def ids(self, *kinds: type) -> list[int]:
        """The nodes with such ops, in no order."""
        return [id for id, node in self._nodes.items() if isinstance(node.op, kinds)]

    def users(self, id: int) -> tuple[int, ...]:
        """Nodes that read this one, each once, in id order."""
        return tuple(sorted(self._users[id]))

    def ancestors(self, id: int) -> frozenset[int]:
        """Every node this one depends on."""
        return frozenset(self._reached([id], lambda each: self._nodes[each].operands) - {id})

    def descendants(self, id: int) -> frozenset[int]:
        """Every node that depends on this one."""
        return frozenset(self._reached([id], self._users.__getitem__) - {id})

    def _reached(self, ids: Iterable[int], following: Callable[[int], Iterable[int]]) -> set[int]:
        """Some nodes and all that one comes to from them."""
        waiting = [*ids]
        found = set(waiting)
        while waiting:
            fresh = [id for id in following(waiting.pop()) if id not in found]
            found.update(fresh)
            waiting += fresh
        return found

    def rename(self, id: int, name: str | None, span: Span | None = None) -> None:
        """Give a node its name in the spec (and the span of the statement that named it)."""
        node = self[id]
        self._nodes[id] = replace(node, name=name, span=span or node.span)

    def replace_op(self, id: int, op: Op) -> None:
        """Give a node another op of the same type."""
        self._nodes[id] = replace(self[id], op=op)
        self.version += 1

    def substitute(self, old: int, new: int) -> None:
        """Let every reader of `old`, and every output, read `new` instead."""
        for user in self.users(old):
            if user == new:
                continue
            node = self[user]
            operands = tuple(new if operand == old else operand for operand in node.operands)
            self._nodes[user] = replace(node, operands=operands)
            del self._users[old][user]
            self._users[new][user] = None
            self._order = None
        self.outputs = {key: new if id == old else id for key, id in self.outputs.items()}
        self.version += 1

    def prune(self, keep: Sequence[int] = ()) -> None:
        """Drop nodes that no output (and nothing in `keep`) depends on."""
        ends = [*self.outputs.values(), *keep]
        live = self._reached(ends, lambda id: self._nodes[id].operands)
        dead = [id for id in self._nodes if id not in live]
        for id in dead:
            for operand in self._nodes.pop(id).operands:
                self._users[operand].pop(id, None)
        for id in dead:
            del self._users[id]
        if self._order is not None and dead:
            self._order = [id for id in self._order if id in live]
        self.version += bool(dead)


def components(reads: Mapping[str, Collection[str]]) -> list[list[str]]:
    """Groups of names that read one another, each after those it reads; names sorted within."""
    import networkx as nx

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
    import networkx as nx

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
