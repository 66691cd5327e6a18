"""The body of a Recurrence on all tokens at once: one node of the body -> a node along the stream.

What does not depend on a state needs no loop. What does is lifted once the values of its states, or
of its reads, are known along the stream.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from archc.ir import layer as ir
from archc.ir.graph import Graph, Node
from archc.recurrence.chunk.frame import Frame

STREAM = "@stream"
"""The label of the stream in a lifted contraction."""


class StateNeeded(Exception):
    """A value was asked for that depends on a state whose values are not known."""

    def __init__(self, node: int) -> None:
        super().__init__(f"node {node} depends on a state")
        self.node = node


class Lifted(Mapping[int, int]):
    """For each node of a body, the node of the frame's graph that has its value along tokens.

    `known` holds those that are there from the start: inputs, and whatever is noted later on.
    `waiting` makes others when they are asked for.
    """

    def __init__(self, frame: Frame, body: Graph, known: Mapping[int, int]):
        self.frame, self.body, self.known = frame, body, dict(known)
        self.waiting: dict[int, Callable[[], int]] = {}

    def note(self, id: int, value: int) -> None:
        """From now on this is the value of a node of the body."""
        self.known[id] = value

    def note_made(self, id: int, make: Callable[[], int]) -> None:
        """The value of a node, made now, or later on if it needs a state that is not known yet: a
        read whose query is made of a state that comes after its own."""
        try:
            self.note(id, make())
        except StateNeeded:
            self.waiting[id] = make

    def __getitem__(self, id: int) -> int:
        if id not in self.known and id in self.waiting:
            self.known[id] = self.waiting[id]()
        elif id not in self.known:
            node = self.body[id]
            if isinstance(node.op, ir.Input):
                raise StateNeeded(id)
            operands = [self[operand] for operand in node.operands]
            self.known[id] = self._lift(node, operands)
        return self.known[id]

    def __iter__(self) -> Iterator[int]:
        return iter(self.known)

    def __len__(self) -> int:
        return len(self.known)

    def _lift(self, node: Node, operands: list[int]) -> int:
        """A node on operands along the stream; it keeps its name and span."""
        op = self._contract(node, operands) if isinstance(node.op, ir.Contract) else node.op
        graph = self.frame.graph
        fresh = graph.fresh
        new = self.frame.add(op, *operands)
        if new >= fresh:
            graph.rename(new, node.name, node.span)
        return new

    def _contract(self, node: Node, operands: list[int]) -> ir.Contract:
        """A contraction whose operands may run along the stream: so does the result, then."""
        graph, op, stream = self.frame.graph, node.op, self.frame.stream
        ins, along = [], False
        for labels, old, new in zip(op.ins, node.operands, operands, strict=True):
            label = dict(zip(self.body[old].type.names, labels, strict=True))
            label[stream.name] = STREAM
            names = graph[new].type.names
            along |= stream.name in names
            ins.append(tuple(label[name] for name in names))
        place = sum(axis.kind == "batch" for _, axis in op.out)
        added = ((STREAM, stream),) if along else ()
        return ir.Contract(tuple(ins), (*op.out[:place], *added, *op.out[place:]))
