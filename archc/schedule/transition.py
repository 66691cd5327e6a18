"""Kernel IR -> kernel IR: what a walk does to its state, without what it adds to it.

    along the chunks    S' = A S + b    for a matrix A that no graph has as one:
                        D' = A D        from D = 1, with the columns of D in the place of S's own

A program of it has some columns, as a program of the walk has: so it takes what a walk takes. Where
nothing is added any more once a walk loads 0 for all that runs along its columns, it is that walk.
"""

from __future__ import annotations

from dataclasses import replace

from archc.dims import Axis
from archc.ir import chunk as ck
from archc.ir import layer as ir
from archc.ir.builder import Builder
from archc.ir.free_names import marked
from archc.ir.graph import Graph, Node, Type
from archc.ir.kernel import Alone, Kernel
from archc.ir.roles import TRANSITION, of_segments


class Whole(Exception):
    """The reason why a walk does not go in segments."""


def transition(kernel: Kernel, name: str) -> tuple[Kernel, Axis, Axis, Alone | None]:
    """The kernel that walks with a matrix in the place of the state, and stores it in `name`; the
    axis that the matrix is applied along, and that of its columns; and how the walk itself does the
    same, if it does. Raises Whole."""
    graph = kernel.graph
    assert kernel.walk is not None
    recurrence = graph[kernel.walk]
    (state, row), column = _state(kernel, recurrence), None
    column = row.renamed(_unused(graph, recurrence.op.body, row))
    assert kernel.split is not None
    alone = _Alone(recurrence.op.body, state.before, kernel.split, column)
    body = alone.body(state)
    read = {node.op.name for node in body if isinstance(node.op, ir.Input)}
    given = {each: id for each, id in ir.captured(recurrence).items() if each in read}
    axes = tuple(column if axis == kernel.split else axis for axis in state.axes)
    made = graph.copy()
    start = made.add(ir.Delta(row, column))
    states = (ir.State(state.name, axes),)
    op = replace(recurrence.op, captures=(*given,), states=states, body=body, chunked=None)
    walk = made.add(op, *given.values(), start, span=recurrence.span)
    own = set(kernel.stores.values())
    loads = {id: each for id, each in kernel.loads.items() if id not in own}
    loads[made.add(ir.Input(name, Type(axes)))] = name
    why = ("what becomes of each state in a segment",)
    turned = Kernel(
        of_segments(kernel.name, TRANSITION), made, loads, {}, kernel.grid, column, walk,
        {state.name: name}, why, most=kernel.most,
    )  # fmt: skip
    zero = _Zero(kernel, recurrence, kernel.split, row)
    same = zero.is_free() and all(map(zero.of_body, alone.added))
    products = (id for id in alone.parts if id in alone.added and zero.has_products(id))
    return turned, row, column, Alone(row, (*products,)) if same else None


def _state(kernel: Kernel, recurrence: Node) -> tuple[ir.State, Axis]:
    """The one state of a walk, and the dim of it that programs have all of."""
    if len(recurrence.op.states) > 1:
        raise Whole("matrices are applied to several states that meet")
    (state,) = recurrence.op.states
    grid = {axis.name for axis in kernel.grid}
    inner = [axis for axis in state.axes if axis.kind == "dim" and axis.name not in grid]
    rows = [axis for axis in inner if axis != kernel.split]
    if kernel.split not in inner or len(rows) != 1:
        raise Whole("a matrix is applied to its states, and no dim of these is free of it")
    return state, rows[0]


def _unused(graph: Graph, body: Graph, axis: Axis) -> str:
    """A name for columns that no axis has."""
    taken = {each.name for part in (graph, body) for node in part for each in node.type.axes}
    return marked(f"{axis.base}_from", taken, "_")


class _Alone:
    """A body, of which only what comes from a state is left; along `old` it then has `new`."""

    def __init__(self, body: Graph, state: str, old: Axis, new: Axis) -> None:
        self.old_body, self.state, self.old, self.new = body, state, old, new
        self.made = Graph[object](body.infer)
        self.added: list[int] = []
        self.copies: dict[int, int] = {}
        self.parts: dict[int, int | None] = {}

    def body(self, state: ir.State) -> Graph:
        """The body of the matrix in the place of the state."""
        found = self._part(self.old_body.outputs[state.name])
        if found is None:
            raise Whole(f"nothing is left of `{state.name}` after a chunk")
        wanted = {self.new.name if a == self.old else a.name for a in state.axes}
        if {*self.made[found].type.names} != wanted:
            raise Whole(f"what is left of `{state.name}` has other axes than it")
        self.made.outputs = {state.name: found}
        return self.made

    def _part(self, id: int) -> int | None:
        """The part of a value that comes from the state; None if nothing does."""
        if id not in self.parts:
            self.parts[id] = self._found(self.old_body[id])
        return self.parts[id]

    def _found(self, node: Node) -> int | None:
        if isinstance(node.op, ir.Input):
            if node.op.name != self.state:
                return None
            return self.made.add(ir.Input(node.op.name, Type(self._renamed(node.type.axes))))
        parts = [self._part(operand) for operand in node.operands]
        having = [part for part in parts if part is not None]
        if not having:
            return None
        fn = node.op.fn if isinstance(node.op, ir.Elementwise) else ""
        if fn in ("add", "sub"):
            return self._sum(node, parts)
        if len(having) == 1 and (fn in ("mul", "neg") or (fn == "div" and parts[0] is not None)):
            return self.made.add(node.op, *self._operands(node, parts))
        if len(having) == 1 and isinstance(node.op, ir.Contract):
            return self._contract(node, parts)
        raise Whole(f"its states go through `{fn or type(node.op).__name__}`")

    def _sum(self, node: Node, parts: list[int | None]) -> int:
        """A sum of what comes from the state."""
        (first, second), op = parts, node.op
        if first is None or second is None:
            self.added.append(node.operands[0 if first is None else 1])
            one = second if first is None else first
            assert one is not None
            negative = first is None and op.fn == "sub"
            return Builder(self.made).fn("neg", one) if negative else one
        return self.made.add(op, first, second)

    def _operands(self, node: Node, parts: list[int | None]) -> list[int]:
        """The operands of a product: the others are as they were."""
        pairs = zip(node.operands, parts, strict=True)
        return [self._copied(operand) if part is None else part for operand, part in pairs]

    def _copied(self, id: int) -> int:
        """A value that does not come from the state."""
        node = self.old_body[id]
        if self.old.name in node.type.names:
            raise Whole(f"its states are scaled along `{self.old.name}`, and go through matrices")
        if id not in self.copies:
            operands = [self._copied(operand) for operand in node.operands]
            self.copies[id] = self.made.add(node.op, *operands, name=node.name, span=node.span)
        return self.copies[id]

    def _contract(self, node: Node, parts: list[int | None]) -> int:
        """A product of matrices of which one comes from the state."""
        operands, ins = self._operands(node, parts), []
        for labels, old, new in zip(node.op.ins, node.operands, operands, strict=True):
            known = dict(zip(self.old_body[old].type.names, labels, strict=True))
            known[self.new.name] = known.get(self.old.name, self.new.name)
            ins.append(tuple(known[name] for name in self.made[new].type.names))
        out = tuple((label, self.new if a == self.old else a) for label, a in node.op.out)
        return self.made.add(ir.Contract(tuple(ins), out), *operands, span=node.span)

    def _renamed(self, axes: tuple[Axis, ...]) -> tuple[Axis, ...]:
        return tuple(self.new if axis == self.old else axis for axis in axes)


class _Zero:
    """What a walk makes of 0 in the place of all that it loads along `split` at every chunk, which
    may then be as long as `row`."""

    def __init__(self, kernel: Kernel, recurrence: Node, split: Axis, row: Axis) -> None:
        self.kernel, self.split, self.row = kernel, split, row
        self.body = recurrence.op.body
        self.captured = ir.captured(recurrence)

    def is_free(self) -> bool:
        """Whether nothing else depends on how long `split` is, so that it may be as long as
        `row`: neither an axis nor a number, and it has no second name."""
        nodes, size = [*self.kernel.graph, *self.body], self.split.size
        sizes = [a.size for n in nodes for a in n.type.axes if a.name != self.split.name]
        sizes += [n.op.value for n in nodes if isinstance(n.op, ir.Constant)]
        free = size == self.row.size or not any(each.has(size) for each in sizes)
        return size.is_Symbol and free and not self.kernel.renamed

    def has_products(self, id: int) -> bool:
        """Whether products of matrices are made for a value of the body."""
        nodes = [self.body[each] for each in (id, *self.body.ancestors(id))]
        names = [node.op.name for node in nodes if isinstance(node.op, ir.Input)]
        waiting = [self.captured[name] for name in names if name in self.captured]
        while waiting:
            node = self.kernel.graph[waiting.pop()]
            if not self._is_loaded(node.id):
                nodes.append(node)
                waiting += node.operands
        return any(isinstance(node.op, ir.Contract) and len(node.operands) > 1 for node in nodes)

    def _is_loaded(self, id: int) -> bool:
        return id in self.kernel.loads and id not in self.kernel.stores.values()

    def of_body(self, id: int) -> bool:
        """Whether a value of the body is 0."""
        node = self.body[id]
        if isinstance(node.op, ir.Input):
            given = self.captured.get(node.op.name)
            return given is not None and self._of_kernel(given)
        return _is_zero(node, [*map(self.of_body, node.operands)])

    def _of_kernel(self, id: int) -> bool:
        """Whether a value that a walk takes is 0."""
        node = self.kernel.graph[id]
        if self._is_loaded(id):
            streams = any(axis.kind == "stream" for axis in node.type.axes)
            return streams and self.split.name in node.type.names
        return _is_zero(node, [*map(self._of_kernel, node.operands)])


def _is_zero(node: Node, given: list[bool]) -> bool:
    """Whether a value is 0, by which of its operands are."""
    fn = node.op.fn if isinstance(node.op, ir.Elementwise) else ""
    if fn == "mul" or isinstance(node.op, ir.Contract):
        return any(given)
    if fn == "div":
        return given[0]
    return (fn in ("add", "sub", "neg") or isinstance(node.op, ck.Chunks)) and all(given)
