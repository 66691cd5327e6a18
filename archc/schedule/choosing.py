"""Layer IR -> layer IR: what readers choose by a score of pairs is chosen where that is made.

    p, o = attend[t reads s](...)                 o      = attend[t reads s](...)
    chosen = top[b, n](sum[s](p * near))    ->    chosen = attend[t reads s](...)

Outside the attend the score is a value of all pairs of tokens; inside, its choices can be made for
some readers at a time, as a reader's do not depend on another's. No gradient goes through them.
"""

from __future__ import annotations

from dataclasses import replace

from archc.ir import layer as ir
from archc.ir.free_names import numbered
from archc.ir.graph import Graph, Node
from archc.schedule.axes import labelled

OF_POSITIONS = (ir.Constant, ir.Position, ir.Delta, ir.Elementwise)
"""Ops of values that no data enters, if they are made of such values alone."""


def choices_within(graph: Graph, node: Node) -> int | None:
    """top(f(score of pairs)) -> the result of an attend; None for what else is chosen, and where
    each sequence has positions of its own: outside of the attend those of what is read are not."""
    if not isinstance(node.op, ir.Top):
        return None
    above = {node.id, *graph.ancestors(node.id)}
    pairs = {id for id in above if _of_pairs(graph, graph[id])}
    owners = {graph[id].operands[0] for id in pairs}
    if len(owners) != 1:
        return None
    owner = graph[owners.pop()]
    if any(isinstance(each.op, ir.Position) and each.op.own for each in owner.op.body):
        return None
    path = {id for id in above - pairs if pairs & graph.ancestors(id)}
    if not all(_keeps(graph, graph[id], owner.op.reader.name) for id in path):
        return None
    return _Moving(graph, owner, pairs, path).moved(node)


def _of_pairs(graph: Graph, node: Node) -> bool:
    """Whether a node is a result of an attend for each pair of tokens."""
    if not isinstance(node.op, ir.Result):
        return False
    op = graph[node.operands[0]].op
    return isinstance(op, ir.Attend) and {op.reader.name, op.read.name} <= {*node.type.names}


def _keeps(graph: Graph, node: Node, reader: str) -> bool:
    """Whether an op makes of each reader's values that reader's."""
    op = node.op
    if reader not in node.type.names or "batch" not in node.type.names:
        return False
    if isinstance(op, ir.Elementwise):
        return True
    if isinstance(op, ir.Contract):
        kept = {label: axis.name for label, axis in op.out}
        own = [each for each in labelled(graph, node) if each[1].name in (reader, "batch")]
        return all(kept.get(label) == axis.name for label, axis in own)
    if isinstance(op, ir.Reduce):
        return reader not in op.axes
    if isinstance(op, ir.Softmax):
        return op.over != reader
    return isinstance(op, ir.Gather | ir.Scatter | ir.Top) and op.axis != reader


class _Moving:
    """Ops that are copied into the body of an attend; `path` are those between it and a choice."""

    def __init__(self, graph: Graph, owner: Node, pairs: set[int], path: set[int]):
        self.graph, self.owner, self.path = graph, owner, path
        self.body = owner.op.body.copy()
        self.made = {id: owner.op.body.outputs[graph[id].op.name] for id in pairs}
        self.captured: dict[str, int] = {}
        self.names = {name for name, _ in owner.op.captures}

    def moved(self, node: Node) -> int | None:
        """The result that takes the place of a choice; None where what it is made of is of the
        tokens read."""
        chosen = self._inside(node.id)
        if chosen is None:
            return None
        op, name = self.owner.op, node.name or "chosen"
        self.body.outputs = {name: chosen}
        self.body.prune()
        entering = {each.op.name for each in self.body if isinstance(each.op, ir.Input)}
        known = dict(zip((n for n, _ in op.captures), self.owner.operands, strict=True))
        captures = [each for each in op.captures if each[0] in entering]
        operands = [known[n] for n, _ in captures]
        captures += [(n, "reader") for n in self.captured if n in entering]
        operands += [id for n, id in self.captured.items() if n in entering]
        made = replace(op, captures=tuple(captures), body=self.body, decode=None)
        return self.graph.add(ir.Result(name), self.graph.add(made, *operands, span=node.span))

    def _inside(self, id: int) -> int | None:
        """The node of the body for one of the graph; None where it cannot enter."""
        if id not in self.made:
            node = self.graph[id]
            copied = id in self.path or self._of_positions(node)
            found = self._copied(node) if copied else self._entering(node)
            if found is None:
                return None
            self.made[id] = found
        return self.made[id]

    def _copied(self, node: Node) -> int | None:
        operands = [self._inside(operand) for operand in node.operands]
        if None in operands:
            return None
        given = [each for each in operands if each is not None]
        return self.body.add(node.op, *given, name=node.name, span=node.span)

    def _of_positions(self, node: Node) -> bool:
        """Whether a value is made of numbers and positions, and is not the position of something
        that the body does not know."""
        if isinstance(node.op, ir.Position):
            own = {self.owner.op.reader, self.owner.op.read}
            return node.op.axis.kind == "dim" or node.op.axis in own
        above = (node.id, *self.graph.ancestors(node.id))
        return all(isinstance(self.graph[id].op, OF_POSITIONS) for id in above)

    def _entering(self, node: Node) -> int | None:
        """A value of the graph as one that the body is given."""
        if self.owner.op.read.name in node.type.names:
            return None
        name = numbered(node.name or "given", self.names)
        self.names.add(name)
        self.captured[name] = node.id
        return self.body.add(ir.Input(name, node.type), name=name)
