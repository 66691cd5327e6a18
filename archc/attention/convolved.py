"""An attend's body -> one in which sums over the past are convolutions.

    sum[s](where(s <= t, h[min(t - s, P - 1)] * u[s], 0))  ->  convolved[s](h of the last t, u)

The weights have a number for each element of what is read, and depend on nothing but how far apart
two tokens are: those of the last reader are those of every other one, moved along. Numbers for
pairs, in each element, would be T x S x d.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import sympy

from archc.ir import chunk as ck
from archc.ir import layer as ir
from archc.ir.builder import Builder
from archc.ir.graph import Graph, Node
from archc.ir.rewrite import rewrite_graph

NOTHING = ir.Constant(sympy.Integer(0))
COMPARED = ("le", "lt", "ge", "gt", "eq", "ne")


def convolved(attend: ir.Attend) -> ir.Attend:
    """The attend with such sums as convolutions; the same one where it has none."""
    own = attend.causal and attend.source == attend.reader.name and attend.path is None
    body = rewrite_graph(attend.body, [partial(_convolution, attend=attend)] if own else [])
    return attend if body is attend.body else replace(attend, body=body, decode=None)


@dataclass
class _Side:
    """The factors of a product that are of pairs, or of tokens alone; and where it is not 0."""

    factors: list[int] = field(default_factory=list)
    masks: list[int] = field(default_factory=list)

    def dims(self, graph: Graph) -> set[str]:
        """The names of all axes but those of tokens and sequences, and of tokens read."""
        axes = (axis for id in self.factors + self.masks for axis in graph[id].type.axes)
        return {axis.name for axis in axes if axis.kind == "dim"}

    def product(self, make: Builder) -> int:
        """The value of this side."""
        value = make.chain("mul", [make.real(id) for id in self.factors] or [make.number(1)])
        for mask in self.masks:
            value = make.fn("where", mask, value, make.number(0))
        return value


def _convolution(graph: Graph, node: Node, attend: ir.Attend) -> int | None:
    """`sum[s](weights * values)` -> `convolved[s](weights of the last reader, values)`."""
    reader, read = attend.reader.name, attend.read.name
    if node.op != ir.Reduce("sum", (read,)):
        return None
    pairs, tokens, shifts = _Side(), _Side(), _Shifts(graph, attend)
    for id, is_mask in _factors(graph, node.operands[0]):
        side = pairs if reader in graph[id].type.names else tokens
        if side is pairs and shifts.of(id) != 0:
            return None
        (side.masks if is_mask else side.factors).append(id)
    along = [any(read in graph[i].type.names for i in s.factors + s.masks) for s in (pairs, tokens)]
    own = tokens.dims(graph)
    if not all(along) or not own or not own <= pairs.dims(graph):
        return None
    make = Builder(graph, node.span)
    last = _Last(make, attend)
    moved = _Side([*map(last.of, pairs.factors)], [*map(last.of, pairs.masks)])
    op = ck.Convolved(read, attend.reader, node.type.axes)
    return make.add(op, moved.product(make), tokens.product(make))


def _factors(graph: Graph, id: int) -> Iterator[tuple[int, bool]]:
    """The factors of a product, and the conditions without which it is 0."""
    node = graph[id]
    if node.op == ir.Elementwise("mul") or _is_outer(graph, node):
        for operand in node.operands:
            yield from _factors(graph, operand)
    elif node.op == ir.Elementwise("where") and graph[node.operands[2]].op == NOTHING:
        yield node.operands[0], True
        yield from _factors(graph, node.operands[1])
    else:
        yield id, False


def _is_outer(graph: Graph, node: Node) -> bool:
    """Whether a node is the product of two values, element by element, which keeps every axis."""
    if not ir.is_product(node.op):
        return False
    kept = {label: axis.name for label, axis in node.op.out}
    return all(
        kept.get(label) == name
        for labels, id in zip(node.op.ins, node.operands, strict=True)
        for label, name in zip(labels, graph[id].type.names, strict=True)
    )


class _Shifts:
    """By how much values grow where both tokens are one later; None where nothing says."""

    def __init__(self, graph: Graph, attend: ir.Attend):
        self.graph, self.pair = graph, {attend.reader.name, attend.read.name}
        self.known: dict[int, int | None] = {}

    def of(self, id: int) -> int | None:
        """That of one value, found once however many read it."""
        if id not in self.known:
            self.known[id] = self._found(self.graph[id])
        return self.known[id]

    def _found(self, node: Node) -> int | None:
        if isinstance(node.op, ir.Position):
            return 1 if node.op.axis.name in self.pair and not node.op.own else None
        if not {"batch", *self.pair} & {*node.type.names}:
            return 0
        if not node.operands or not _is_by_place(self.graph, node, self.pair):
            return None
        grows: list[int] = []
        for id in node.operands:
            if (each := self.of(id)) is None:
                return None
            grows.append(each)
        return _grown(node.op, grows)


def _grown(op: ir.Op, grows: Sequence[int]) -> int | None:
    """The same, of an op by what its operands grow by."""
    fn = op.fn if isinstance(op, ir.Elementwise) else ""
    alike = len({*grows}) == 1
    if fn in ("add", "sub"):
        return grows[0] + grows[1] if fn == "add" else grows[0] - grows[1]
    if fn in ("min", "max") and alike:
        return grows[0]
    return 0 if (fn in COMPARED and alike) or not any(grows) else None


def _is_by_place(graph: Graph, node: Node, pair: set[str]) -> bool:
    """Whether a value of two tokens is made of what they are, and of no others."""
    if isinstance(node.op, ir.Reduce | ir.Contract):
        given = {name for id in node.operands for name in graph[id].type.names}
        return not pair & (given - {*node.type.names})
    return isinstance(node.op, ir.Elementwise | ir.Gather)


class _Last:
    """Values of pairs for the last reader alone, which is the last token read."""

    def __init__(self, make: Builder, attend: ir.Attend):
        self.make, self.reader, self.read = make, attend.reader.name, attend.read
        self.known: dict[int, int] = {}

    def of(self, id: int) -> int:
        """A value without its axis of readers."""
        node = self.make.graph[id]
        if self.reader not in node.type.names:
            return id
        if id not in self.known:
            self.known[id] = self._made(node)
        return self.known[id]

    def _made(self, node: Node) -> int:
        make, op = self.make, node.op
        if isinstance(op, ir.Position):
            return make.add(ir.Reduce("max", (self.read.name,)), make.add(ir.Position(self.read)))
        if isinstance(op, ir.Contract):
            names = [make.names(id) for id in node.operands]
            ins = (
                tuple(label for label, name in zip(*each, strict=True) if name != self.reader)
                for each in zip(op.ins, names, strict=True)
            )
            out = tuple(each for each in op.out if each[1].name != self.reader)
            op = replace(op, ins=tuple(ins), out=out)
        return make.add(op, *map(self.of, node.operands))
