"""Layer IR -> where each value is when a dim is split over processes, found from its labels.

A value is whole (every process has all of it), split along one of its axes, or a sum that still has
to be taken over the processes. The first values are given: parameters with a dim that is split, or
inputs along the tokens. Every other follows from what its op does with its axes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import sympy

from archc.ir import layer as ir
from archc.ir.graph import Graph, Node


@dataclass(frozen=True)
class Split:
    """Each process has its own part along the axis."""

    axis: str


@dataclass(frozen=True)
class Pending:
    """Each process has a term of a sum, or of a mean."""

    fn: str


Mark = Split | Pending | None
"""None: every process has the whole value."""


class Crossing(Exception):
    """An op that needs all of what is split; `kin` is an axis that would have to be split too."""

    def __init__(self, reason: str, node: Node | None = None, kin: str | None = None):
        super().__init__(reason)
        self.reason, self.node, self.kin = reason, node, kin


def place_of(node: Node | None) -> str:
    """The place of a value in the spec: `, at my.arch:12`; nothing where that is not known."""
    if node is None or node.span is None:
        return ""
    source = node.span.source
    return f", at {source.name}:{source.text.count(chr(10), 0, node.span.start) + 1}"


def looks_along(op: ir.Op) -> set[str]:
    """The axes along which an op looks at more than one place at a time."""
    if isinstance(op, ir.Reduce | ir.Join | ir.Reshape):
        return {*op.axes, *({op.into.name} if isinstance(op, ir.Join) else ())}
    if isinstance(op, ir.Gather | ir.Scatter | ir.Top):
        return {op.axis}
    if isinstance(op, ir.Solve):
        return {op.row, op.col}
    if isinstance(op, ir.Shift | ir.Window):
        return {op.stream}
    if isinstance(op, ir.Softmax):
        return {op.over}
    if isinstance(op, ir.Segment):
        return {op.path, op.reader.name, op.read.name, op.row or "", op.col or ""}
    return {op.read} if isinstance(op, ir.Substitute) else set()


class Places:
    """The mark of each value of a graph.

    `given` are those that are known, `sizes` the symbols of sizes that are split: a value that is
    computed from one of these is another one on a part. `sliced` are values that are whole, and of
    which a part is taken where they meet one that is split; in the body of a recurrence or an
    attend nothing is.
    """

    def __init__(
        self, graph: Graph, given: Mapping[int, Mark], sizes: Collection[sympy.Symbol],
        body: bool = False,
    ):  # fmt: skip
        self.graph, self.sizes, self.body = graph, frozenset(sizes), body
        self.marks: dict[int, Mark] = {}
        self.results: dict[int, dict[str, Mark]] = {}
        self.sliced: dict[tuple[int, int], str] = {}
        self.free = free_values(graph)
        for node in graph:
            self.marks[node.id] = given[node.id] if node.id in given else self._mark(node)

    def read(self, id: int) -> Split | None:
        """How a value is where it is read: sums have been taken by then."""
        mark = self.marks[id]
        return mark if isinstance(mark, Split) else None

    def _mark(self, node: Node) -> Mark:
        if isinstance(node.op, ir.Result):
            return self.results.get(node.operands[0], {}).get(node.op.name)
        found = {mark.axis for o in node.operands if (mark := self.read(o)) is not None}
        if not found:
            return None
        if isinstance(node.op, ir.Recurrence | ir.Attend):
            self._region(node, found)
            return None
        if len(found) > 1:
            names = " and along ".join(f"`{name}`" for name in sorted(found))
            raise Crossing(f"what is split along {names} meets", node)
        (axis,) = found
        for operand in node.operands:
            self._fits(node, operand, axis)
        if isinstance(node.op, ir.Call):
            name = node.op.callee.name
            raise Crossing(f"`{name}` is given a value that is split along `{axis}`", node)
        mark = self._after(node, axis)
        if isinstance(mark, Split) and mark.axis not in node.type.names:
            raise Crossing(f"`{mark.axis}` is lost", node)
        if isinstance(mark, Split):
            self._other_sizes(node, mark.axis)
        return mark

    def _other_sizes(self, node: Node, axis: str) -> None:
        """Refuse another axis whose length is made from a size that is split."""
        for other in node.type.axes:
            if other.name != axis and other.size.free_symbols & self.sizes:
                raise Crossing(f"`{other.name}` is as long as `{axis}` says", node)

    def _fits(self, node: Node, operand: int, axis: str) -> None:
        """An operand that is whole, beside one that is split."""
        value = self.graph[operand]
        if self.read(operand) is not None:
            return
        if operand in self.free:
            if not (isinstance(node.op, ir.Gather) and group_of(self.graph, node) is not None):
                self._counted(node, operand, axis)
        elif axis in value.type.names:
            if self.body:
                kin = group_of(self.graph, value)
                raise Crossing(f"a whole value along `{axis}` is read", node, kin)
            self.sliced[node.id, operand] = axis

    def _counted(self, node: Node, operand: int, axis: str) -> None:
        """Refuse what is made of positions along the axis, or of its length."""
        for id in (operand, *self.graph.ancestors(operand)):
            op = self.graph[id].op
            if isinstance(op, ir.Position | ir.Delta) and axis in self.graph[id].type.names:
                raise Crossing(f"places along `{axis}` are counted", node)
            if isinstance(op, ir.Constant) and op.value.free_symbols & self.sizes:
                raise Crossing(f"`{op.value}` is computed from a size that is split", node)

    def _after(self, node: Node, axis: str) -> Mark:
        """The mark of what an op makes of values that are split along an axis."""
        op = node.op
        if isinstance(op, ir.Contract):
            return self._product(node, op, axis)
        if axis not in looks_along(op):
            return Split(axis)
        if isinstance(op, ir.Reduce) and op.fn in ("sum", "mean"):
            return Pending(op.fn)
        if isinstance(op, ir.Gather) and group_of(self.graph, node) == axis:
            (heads,) = self.graph[node.operands[1]].type.names
            if not self.graph[node.operands[1]].type.axes[0].size.free_symbols & self.sizes:
                raise Crossing(f"`{heads}` counts groups along `{axis}`", node, heads)
            return Split(heads)
        raise Crossing(f"`{type(op).__name__.lower()}` looks along `{axis}`", node)

    def _product(self, node: Node, op: ir.Contract, axis: str) -> Mark:
        labels = set()
        for place, operand in zip(op.ins, node.operands, strict=True):
            if axis in self.graph[operand].type.names and self.read(operand) is not None:
                labels.add(place[self.graph[operand].type.names.index(axis)])
        if len(labels) > 1:
            raise Crossing(f"each place along `{axis}` meets every other", node)
        (label,) = labels
        for place, operand in zip(op.ins, node.operands, strict=True):
            names = self.graph[operand].type.names
            mark = self.read(operand)
            kept = names[place.index(label)] if label in place else None
            if kept is not None and kept != (mark.axis if mark else axis):
                raise Crossing(f"`{kept}` meets `{axis}`", node)
        made = [out.name for each, out in op.out if each == label]
        return Split(made[0]) if made else Pending("sum")

    def _region(self, node: Node, axes: Collection[str]) -> None:
        """The results of a recurrence or an attend, from its body."""
        op, body = node.op, node.op.body
        for operand in node.operands:
            for axis in axes:
                self._fits(node, operand, axis)
        captures = [each if isinstance(each, str) else each[0] for each in op.captures]
        entering = dict(zip(captures, node.operands, strict=False))
        states = {s.before: s for s in op.states} if isinstance(op, ir.Recurrence) else {}
        given: dict[int, Mark] = {}
        for each in body:
            if isinstance(each.op, ir.Input):
                known = each.op.name not in states
                source = self.read(entering[each.op.name]) if known else None
                own = [axis for axis in each.type.names if axis in axes]
                split = own and (
                    not known or source is not None or self._slices(node, entering, each)
                )
                given[each.id] = Split(own[0]) if split else None
        inside = Places(body, given, self.sizes, body=True)
        for before, state in states.items():
            carried = given_of(body, given, before)
            if inside.marks[body.outputs[state.name]] != carried:
                raise Crossing(f"the state `{state.name}` is not the same for each head", node)
        if any(isinstance(mark, Pending) for mark in inside.marks.values()):
            listed = " and ".join(f"`{axis}`" for axis in sorted(axes))
            raise Crossing(f"inside, a sum is taken over {listed}", node)
        self.results[node.id] = {name: inside.marks[id] for name, id in body.outputs.items()}

    def _slices(self, node: Node, entering: Mapping[str, int], each: Node) -> bool:
        """Whether a part is taken of what enters a body."""
        return (node.id, entering[each.op.name]) in self.sliced


def given_of(body: Graph, given: Mapping[int, Mark], name: str) -> Mark:
    """The mark of an input of a body."""
    found = (n.id for n in body if isinstance(n.op, ir.Input) and n.op.name == name)
    return next((given[id] for id in found), None)


def free_values(graph: Graph, *also: type) -> frozenset[int]:
    """Values made of constants and positions along dims alone, and of what `also` says: each
    process computes them where it reads them."""
    found: set[int] = set()
    for node in graph:
        source = isinstance(node.op, (ir.Constant, ir.Delta, ir.Position, *also))
        if source or (node.operands and all(operand in found for operand in node.operands)):
            found.add(node.id)
    return frozenset(found)


def group_of(graph: Graph, node: Node) -> str | None:
    """The axis of groups that a gather reads for each head: at the head's place, divided by the
    heads of a group; None for any other op."""
    if not isinstance(node.op, ir.Gather):
        return None
    index = graph[node.operands[1]]
    if index.op != ir.Elementwise("floordiv") or len(index.type.axes) != 1:
        return None
    place, many = (graph[operand].op for operand in index.operands)
    if not isinstance(place, ir.Position) or not isinstance(many, ir.Constant):
        return None
    groups = graph[node.operands[0]].type.axis(node.op.axis).size
    wanted = place.axis.size / groups
    same = many.value in (wanted, sympy.floor(wanted))
    return node.op.axis if same else None


def axes_of_parameters(layer: ir.Layer) -> dict[str, sympy.Expr]:
    """The axes that parameters have whose length is a size of its own, and that size."""
    found: dict[str, sympy.Expr] = {}
    for _, param in layer.params:
        found |= {axis.name: axis.size for axis in param.axes if axis.size.is_Symbol}
    return found


def split_parameters(layer: ir.Layer, axes: Sequence[str]) -> dict[int, Mark]:
    """The marks of the parameters that have one of the axes. Raises Crossing for two of them."""
    found: dict[int, Mark] = {}
    for id, param in layer.params:
        own = [axis.name for axis in param.axes if axis.name in axes]
        if len(own) > 1:
            raise Crossing(f"`{param.name}` has {' and '.join(own)}", layer.graph[id])
        if own:
            found[id] = Split(own[0])
    return found
