"""In slots, an attend reads what each sequence has chosen out of its caches, and nothing else.

What is taken stands in order of the places that were chosen, blocks of so many tokens, and the
block of the reader's own token last. So a token is no later than the reader if it is not behind
the reader's place in that block, and `pos` becomes that place.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import sympy
from archc.backends.eager.scope import Scope
from archc.backends.eager.value import Value
from archc.backends.expression import Text, call

from archc.dims import Axis
from archc.ir import layer as ir
from archc.ir.graph import Graph, Node


def of_chosen_alone(
    scope: Scope, node: Node, values: dict[str, Value]
) -> dict[str, Value]:  # fmt: skip
    """What enters an attend, of what each sequence has chosen alone; all of it where more than that
    may count."""
    op = node.op
    if not scope.file.slots or op.source != op.reader.name or op.path is not None:
        return values
    alone = choice_alone(scope.graph, op, node.operands)
    if alone is None:
        return values
    chosen, top, size = alone
    read = [n for n, role in op.captures if role == "read" and op.source in values[n].layout]
    heads = values[chosen].layout[3:]
    own = values[chosen].layout[:3] == ("batch", op.reader.name, top.axis) and len(heads) < 2
    begin = ("batch", op.source, *heads)
    alike = all(values[name].layout[: len(begin)] == begin for name in read)
    if not own or not alike:
        return values
    return values | _taken(scope, node, values, chosen, top.count, read, size)


class Alone(NamedTuple):
    """What an attend's readers have chosen, where it looks at nothing else: the name of the
    capture, the choice, and how many tokens a place of it has."""

    capture: str
    top: ir.Top
    size: sympy.Expr


def choice_alone(graph: Graph, op: ir.Attend, operands: Sequence[int]) -> Alone | None:
    """The one choice that an attend looks at alone; None where tokens that are not chosen, or their
    places, may count."""
    given = zip(op.captures, operands, strict=True)
    tops = {n: _choice(graph, operand) for (n, role), operand in given if role == "reader"}
    found = [(name, top) for name, top in tops.items() if top is not None]
    if len(found) != 1:
        return None
    ((chosen, top),) = found
    bodies = [op.body, *([op.decode] if op.decode is not None else [])]
    sizes = [_size_of_blocks(_Reading(body, op, chosen, top.axis)) for body in bodies]
    if sizes[0] is None or any(each != sizes[0] for each in sizes):
        return None
    return Alone(chosen, top, sizes[0])


def _taken(
    scope: Scope, node: Node, values: dict[str, Value], chosen: str, count: sympy.Expr,
    read: list[str], size: sympy.Expr,
) -> dict[str, Value]:  # fmt: skip
    """Write the line that takes it; what enters in its place."""
    texts = {name: scope.names.fresh(f"{values[name].text}_taken") for name in (chosen, *read)}
    pos = scope.taken[node.id] = scope.names.fresh("pos_taken")
    given = [values[chosen].text, scope.size(count), scope.size(size)]
    given += [Text(scope.ask("pos")), *(values[name].text for name in read)]
    left = ", ".join([pos, *texts.values()])
    scope.writer.line(f"{left} = {call('taken_in_slots', *given)}")
    return {name: replace(values[name], text=Text(text)) for name, text in texts.items()}


def _choice(graph: Graph, id: int) -> ir.Top | None:
    """The choice that a value is; None where it is none."""
    node = graph[id]
    if isinstance(node.op, ir.Result):
        attend = graph[node.operands[0]].op
        node = attend.body[attend.body.outputs[node.op.name]] if _is_attend(attend) else node
    return node.op if isinstance(node.op, ir.Top) else None


def _is_attend(op: object) -> bool:
    return isinstance(op, ir.Attend)


@dataclass
class _Reading:
    """The nodes of an attend's body that have to do with a choice along `axis`."""

    body: Graph
    op: ir.Attend
    chosen: str
    axis: str

    def __post_init__(self) -> None:
        self.read = self.op.read.name
        self.places, self.readers = map(self._positions, (self.op.read, self.op.reader))
        self.blocks = {n.id for n in self.body if self._divides(n)}
        self.sizes = {self.body[self.body[id].operands[1]].op.value for id in self.blocks}
        inputs = (n for n in self.body if isinstance(n.op, ir.Input))
        self.own = {n.id for n in inputs if n.op.name == self.chosen}
        for node in self.body:
            self.own |= {node.id} if self._hands_on(node) else set()
        self.seen = {n.id for n in self.body if self._compares(n)}
        both = (n for n in self.body if n.op == ir.Elementwise("and"))
        self.masks = {n.id for n in both if {*n.operands} & self.own and {*n.operands} & self.seen}

    def _positions(self, axis: Axis) -> set[int]:
        ops = [ir.Position(axis, own) for own in (True, False)]
        return {n.id for n in self.body if n.op in ops}

    def _divides(self, node: Node) -> bool:
        """Whether a node is the block of a token read."""
        if node.op != ir.Elementwise("floordiv") or node.operands[0] not in self.places:
            return False
        return isinstance(self.body[node.operands[1]].op, ir.Constant)

    def _hands_on(self, node: Node) -> bool:
        """Whether a node is a choice read at the block of each token, or at another head."""
        if not isinstance(node.op, ir.Gather) or node.operands[0] not in self.own:
            return False
        index = node.operands[1]
        return index in self.blocks if node.op.axis == self.axis else not self.is_read(index)

    def _compares(self, node: Node) -> bool:
        """Whether a node says that a token is no later than its reader."""
        if node.op != ir.Elementwise("le"):
            return False
        return node.operands[0] in self.places and node.operands[1] in self.readers

    def is_read(self, id: int) -> bool:
        """Whether a node has a value for each token read."""
        return self.read in self.body[id].type.names

    def used(self) -> Iterator[bool]:
        """Whether each of these is used for a mask alone."""
        users = self.body.users
        yield from ({*users(id)} <= self.seen | self.blocks for id in self.places)
        yield from ({*users(id)} <= self.seen for id in self.readers)
        yield from ({*users(id)} <= self.own for id in self.blocks)
        yield from ({*users(id)} <= self.masks for id in self.seen)
        yield from ({*users(id)} <= self.own | self.masks for id in self.own)

    def masked(self, node: Node) -> bool:
        """Whether an op that looks along the tokens read looks at those that are chosen alone."""
        along = [id for id in node.operands if self.is_read(id)]
        if isinstance(node.op, ir.Gather):
            return node.id in self.own or not self.is_read(node.operands[1])
        if isinstance(node.op, ir.Delta | ir.Segment | ir.Top | ir.Scatter | ir.Substitute):
            return not along and not self.is_read(node.id)
        if isinstance(node.op, ir.Softmax) and node.op.over == self.read:
            return node.operands[1] in self.masks
        if not along or self.is_read(node.id):
            return True
        return any(self._is_nothing(self.body[id], node.op) for id in along)

    def _is_nothing(self, node: Node, by: object) -> bool:
        """Whether a value is 0 where a token is not chosen, or -inf where the largest is looked
        for."""
        if isinstance(node.op, ir.Softmax):
            return node.op.over == self.read and node.operands[1] in self.masks
        if node.op != ir.Elementwise("where") or node.operands[0] not in self.masks:
            return False
        rest = {"max": -sympy.oo, "logsumexp": -sympy.oo, "sum": sympy.S.Zero}
        fn = "sum" if isinstance(by, ir.Contract) else by.fn if isinstance(by, ir.Reduce) else ""
        return fn in rest and self.body[node.operands[2]].op == ir.Constant(rest[fn])


def _size_of_blocks(r: _Reading) -> sympy.Expr | None:
    """How many tokens a block of a choice has, 1 if tokens are chosen; None where tokens that are
    not chosen, or their places, may count."""
    sizes = [sympy.S.One] if r.axis == r.read and not r.sizes else [*r.sizes]
    captured = (n for n in r.body if isinstance(n.op, ir.Input) and r.is_read(n.id))
    roles = dict(r.op.captures)
    others = [n for n in captured if roles.get(n.op.name) == "reader" and n.id not in r.own]
    left = any(r.is_read(id) for id in r.body.outputs.values())
    inside = all(r.used()) and all(r.masked(node) for node in r.body)
    return sizes[0] if inside and len(sizes) == 1 and not others and not left else None
