"""Layer IR -> layer IR: a system with a state in its matrix, for all tokens at once, by products.

z = solve(H[t] + diag(lam), q) -> conjugate gradients whose product with p reads H[t] with p as the
query. What does not depend on p is computed once, outside.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from archc.dims import Axis
from archc.ir import chunk as ck
from archc.ir import layer as ir
from archc.ir.graph import Graph, Type
from archc.ir.typing import layer_graph
from archc.recurrence.chunk.frame import Frame
from archc.recurrence.chunk.implicit import Scale, System
from archc.recurrence.chunk.scan import cut

QUERY, PRODUCT = "p", "product"

Read = Callable[[str, int, str], int]
"""(state, query in rows of chunks, "before" or "written") -> the read, in rows of chunks: the sum
over the state's key axis."""


def conjugate(
    frame: Frame,
    system: System,
    sides: tuple[Axis, Axis],
    type: Type,
    lifted: Mapping[int, int],
    read: Read,
) -> int:
    """The solution along tokens [batch, t, ...].

    `sides` are the state's key and value axis, `type` that of the Solve node in the body, `lifted`
    the body's nodes along tokens. The frame's graph is as it was but for what is added.
    """
    for node in system.needs:
        lifted[node]  # what is missing is found out before anything is added
    batch = [axis for axis in type.axes if axis.kind == "batch"]
    dims = [axis for axis in type.axes if axis.kind != "batch"]
    right = frame.full(lifted[system.right], (*batch, frame.stream, *dims))
    rows = frame.cut(right)
    kept = [node.id for node in frame.graph]
    query = frame.graph.add(ir.Input(QUERY, frame.graph[rows].type))
    axes = {axis.name: axis for axis in dims}
    row = axes[system.row]
    product = _Product(frame, system, row, lifted).of(query, sides, read)
    body, captured = cut_out(frame.graph, query, product)
    op = ck.Conjugate((row.name,), tuple(captured), body, system.iterations)
    _drop(frame.graph, query, kept)
    return frame.joined(frame.graph.add(op, rows, *captured.values()))


def turned(frame: Frame, id: int, sides: tuple[Axis, Axis]) -> int:
    """The transpose of a state: its key and value axis change places.

    A read sums over the key axis, which may be the rows of the system's matrix. So that the form
    is exact for any initial value, its gradient too, the transpose of the state is carried: from
    the transpose of the initial value, and the final state is turned back. The axes keep their
    order.
    """
    other = {sides[0].name: sides[1].name, sides[1].name: sides[0].name}
    out = tuple((other.get(axis.name, axis.name), axis) for axis in frame.graph[id].type.axes)
    return frame.add(ir.Contract((frame.names(id),), out), id)


class _Product:
    """The matrix of a system times a vector."""

    def __init__(self, frame: Frame, system: System, row: Axis, lifted: Mapping[int, int]):
        self.frame, self.system, self.row, self.lifted = frame, system, row, lifted
        self.filled = False  # whether a diagonal is 0 where the last chunk is filled up

    def of(self, p: int, sides: tuple[Axis, Axis], read: Read) -> int:
        """H p + lam * p, with the axes of p in their order."""
        frame, system, (key, value) = self.frame, self.system, sides
        query = p if key.name == self.row.name else frame.renamed(p, {self.row.name: key})
        parts = []
        for share in system.shares:
            found = read(share.state, query, share.when)
            if value.name != self.row.name:
                found = frame.renamed(found, {value.name: self.row})
            parts.append(self._scaled(found, share.scale))
        for each in system.diagonals:
            factor = None if each.value is None else self._along_row(each.value)
            self.filled |= self._varies([] if each.value is None else [each.value])
            self.filled |= self._varies([node for _, node in each.scale.factors])
            scaled = p if factor is None else frame.fn("mul", factor, p)
            parts.append(self._scaled(scaled, each.scale))
        total = frame.total(parts)
        assert total is not None, "a system has a matrix"
        return self._arranged(self._regular(total, p) if self.filled else total, p)

    def _scaled(self, id: int, scale: Scale) -> int:
        for fn, node in scale.factors:
            id = self.frame.fn(fn, id, cut(self.frame, self.lifted[node], int(fn == "div")))
        return id if scale.sign > 0 else self.frame.fn("neg", id)

    def _along_row(self, node: int) -> int:
        """A diagonal in chunks, along the rows of the matrix."""
        id = cut(self.frame, self.lifted[node])
        if self.frame.has(id, (self.system.col,)):
            return self.frame.renamed(id, {self.system.col: self.row})
        return id

    def _varies(self, nodes: list[int]) -> bool:
        """Whether one of the values differs from token to token."""
        return any(self.frame.has(self.lifted[n], (self.frame.stream.name,)) for n in nodes)

    def _regular(self, total: int, p: int) -> int:
        """The identity matrix where the last chunk is filled up."""
        frame = self.frame
        position = frame.add(ir.Position(frame.stream))
        there = frame.cut(frame.fn("ge", position, frame.number(0)))
        return frame.fn("where", there, total, p)

    def _arranged(self, id: int, like: int) -> int:
        """A value with its axes in the order of another's."""
        axes = self.frame.graph[like].type.axes
        if self.frame.names(id) == tuple(axis.name for axis in axes):
            return id
        out = tuple((axis.name, axis) for axis in axes)
        return self.frame.add(ir.Contract((self.frame.names(id),), out), id)


def cut_out(graph: Graph, query: int, product: int) -> tuple[Graph, dict[str, int]]:
    """The ops from `query` to `product` as a body of its own, and the values that enter it."""
    inside = (graph.descendants(query) & graph.ancestors(product)) | {query, product}
    needed = sorted({o for id in inside for o in graph[id].operands} - inside)
    body, captured = layer_graph(), dict[str, int]()
    copies: dict[int, int] = {}
    for id in needed:
        node = graph[id]
        if isinstance(node.op, ir.Constant | ir.Position | ir.Delta) and node.type.names == ():
            copies[id] = body.add(node.op)
            continue
        name = f"c{len(captured)}"
        captured[name] = id
        copies[id] = body.add(ir.Input(name, node.type), name=name)
    for node in graph:
        if node.id in inside:
            operands = (copies[operand] for operand in node.operands)
            copies[node.id] = body.add(node.op, *operands, name=node.name, span=node.span)
    body.outputs = {PRODUCT: copies[product]}
    return body, captured


def _drop(graph: Graph, query: int, kept: list[int]) -> None:
    """Take the query and what was made of it out of the graph again."""
    made = graph.descendants(query) | {query}
    graph.prune([*kept, *(node.id for node in graph if node.id not in made)])
