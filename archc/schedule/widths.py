"""The dtypes of values in memory, where the data have 16 bits.

u [rows, V]    only multiplies matrices                 the dtype of the data
p [rows, K]    d.k = p + b x, a result for each token   the same: d.k is rounded once more
g [rows, K]    d.gate = sums over rows of g - h         float32: large parts cancel
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from archc.dims import Axis
from archc.ir import chunk as ck
from archc.ir import layer as ir
from archc.ir.graph import Graph, Node
from archc.ir.kernel import NARROW, SUMMED, WIDE
from archc.ir.value_names import is_saved, primal
from archc.schedule.axes import counts_chunks, own_dims
from archc.schedule.levels import PAIRED, Levels
from archc.schedule.near_rows import is_power
from archc.schedule.operands import matrices
from archc.schedule.quotients import exact_products, exact_states
from archc.schedule.row_scales import MUL

LINEAR = ("add", "sub", "neg", "mul")
"""Functions whose results are rounded no better than what they are made of."""

GATES = (ck.Sums, ck.SpansGradient, ck.GateGradient, ck.GateShares, ck.Scan, ck.BlockSums)
"""Ops that gradients of gates are made by, and of no other gradient: sums of parts that cancel."""


class Widths:
    """The dtype of each value of a chunked form or of its gradient, as if it were in memory."""

    def __init__(self, graph: Graph, levels: Levels, heads: Collection[str]) -> None:
        self.graph, self.levels, self.heads = graph, levels, heads
        self.exact, self.exact_states = exact_products(graph), exact_states(graph)
        self.gates = {n.id for n in graph if isinstance(n.op, GATES) and _of_results(graph, n.id)}
        self._known: dict[int, str] = {}

    def of(self, id: int) -> str:
        """As narrow as the inputs if only products of matrices read it, or it is added up to a
        result that is as narrow."""
        if id not in self._known:
            op = self.graph[id].op
            summed = isinstance(op, ck.Sums) and op.gates
            narrow = self.only_multiplied(id) or (self._is_part(id) and not self._exact(id))
            self._known[id] = SUMMED if summed else NARROW if narrow else WIDE
        return self._known[id]

    def only_multiplied(self, id: int) -> bool:
        """Whether only products of matrices, none of them exact, read a value."""
        return self._only_in_products(self.graph, id) and not self._exact(id)

    def _exact(self, id: int) -> bool:
        """Whether a value is a state, or read by another kernel, for products that are exact."""
        graph, of = self.graph, self.levels.of
        elsewhere = (user for user in graph.users(id) if of[user] != of[id])
        return id in self.exact_states or any(user in self.exact for user in elsewhere)

    # --- factors of products ---

    def _only_in_products(self, graph: Graph, id: int) -> bool:
        users = graph.users(id)
        if graph is self.graph and any(user in self.levels.fallback for user in users):
            return False  # lines of PyTorch know of one dtype
        return bool(users) and all(self._multiplies(graph, id, graph[user]) for user in users)

    def _multiplies(self, graph: Graph, id: int, user: Node) -> bool:
        """Whether a user only multiplies matrices with the value."""
        op = user.op
        if isinstance(op, ir.Contract):
            kept = {label for label, _ in op.out}
            summed = any(label not in kept for labels in op.ins for label in labels)
            renamed = len(op.ins) == 1 and not summed
            if len(op.ins) == 2 and summed:
                return self._is_matrix(graph[id])
            return renamed and self._only_in_products(graph, user.id)
        if op == MUL and any(is_power(graph, each) for each in user.operands if each != id):
            return self._only_in_products(graph, user.id)  # it is not rounded once more
        if isinstance(op, ck.NearGram):
            return id not in user.operands[2:]
        if isinstance(op, PAIRED) and not isinstance(op, ck.Gram):
            return matrices(user).count(id) == user.operands.count(id)
        if isinstance(op, ir.Recurrence | ck.Conjugate):
            inside = _inside(user, id)
            return inside is not None and all(self._only_in_products(op.body, i) for i in inside)
        return False

    def _is_matrix(self, node: Node) -> bool:
        """Whether a program holds more than a vector of a value: one, say what weights of keys add
        up to at the start of a chunk, is multiplied and summed in float32, which would show what
        was rounded, and costs next to nothing to keep."""
        return sum(not self._one_each(axis) for axis in node.type.axes) > 1

    def _one_each(self, axis: Axis) -> bool:
        """Whether a program has one of an axis: of a batch, of heads, of chunks."""
        return axis.kind == "batch" or axis.name in self.heads or counts_chunks(axis)

    # --- parts of results ---

    def _is_part(self, id: int) -> bool:
        """Whether a matrix, not of rows alone, is added up to results. Lines of PyTorch know how to
        sum it in float32, and nothing else."""
        node, users = self.graph[id], map(self.graph.__getitem__, self.graph.users(id))
        read = any(n.id in self.levels.fallback and not _is_sum(n) for n in users)
        dims = [each for each in own_dims(node.type.axes, self.heads) if each.size != ck.CHUNK]
        return not read and bool(dims) and self._is_matrix(node) and self._adds_up(self.graph, id)

    def _adds_up(self, graph: Graph, id: int) -> bool:
        """Whether nothing but products of matrices and sums that are results read a value."""
        users, given = graph.users(id), id in graph.outputs.values()
        if given and not self._is_result(graph, id):
            return False
        read = bool(users) or given
        return read and all(self._is_added(graph, id, graph[user]) for user in users)

    def _is_added(self, graph: Graph, id: int, user: Node) -> bool:
        """Whether one of its users is such."""
        op = user.op
        if graph is self.graph and user.id in self.exact:
            return False
        if isinstance(op, ir.Recurrence):
            inside = _inside(user, id)
            return inside is not None and all(self._adds_up(op.body, i) for i in inside)
        linear = (
            _is_sum(user)
            or isinstance(op, ck.Chunks | ck.Tokens)
            or (isinstance(op, ir.Elementwise) and op.fn in LINEAR)
            or (isinstance(op, ir.Contract) and len(op.ins) == 1)
        )
        return self._adds_up(graph, user.id) if linear else self._multiplies(graph, id, user)

    def _is_result(self, graph: Graph, id: int) -> bool:
        """Whether an output is one for each token and no gate's; or, of the body of a walk, a state
        that is not divided, or a value that adds up to results in turn."""
        names = {name for name, each in graph.outputs.items() if each == id}
        if graph is self.graph:
            along = any(a.kind == "stream" and not counts_chunks(a) for a in graph[id].type.axes)
            return along and not self.gates & graph.ancestors(id) and not any(map(is_saved, names))
        if self.exact or self.exact_states:
            return False
        (walk,) = (n for n in self.graph if isinstance(n.op, ir.Recurrence) and n.op.body is graph)
        names -= {state.name for state in walk.op.states}
        results = (n for n in self.graph if isinstance(n.op, ir.Result))
        read = (n for n in results if n.operands[0] == walk.id and n.op.name in names)
        return all(self._adds_up(self.graph, n.id) for n in read)


def _is_sum(node: Node) -> bool:
    return isinstance(node.op, ir.Reduce) and node.op.fn == "sum"


def _of_results(graph: Graph, id: int) -> bool:
    """Whether a value of a gradient is made of gradients of results."""
    given = (graph[each].op for each in graph.ancestors(id))
    return any(isinstance(op, ir.Input) and primal(op.name) is not None for op in given)


def _inside(user: Node, id: int) -> list[int] | None:
    """The nodes of a value in the body that captures it; None where it is a state at the start
    too."""
    names = {name for name, operand in _captured(user) if operand == id}
    inside = [n.id for n in user.op.body if isinstance(n.op, ir.Input) and n.op.name in names]
    return inside if len(names) == user.operands.count(id) else None


def _captured(node: Node) -> Iterable[tuple[str, int]]:
    """The captures of the body of a Recurrence or of a Conjugate, by name: beside it stand the
    states that it begins with, or the right side."""
    first = int(isinstance(node.op, ck.Conjugate))
    return zip(node.op.captures, node.operands[first:], strict=False)
