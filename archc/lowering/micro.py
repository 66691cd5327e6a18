"""Tokens of several rows: which rows of a chunk are right for a value along tokens.

Where a token takes several steps, the rows of a chunk are steps, and every row is the row of one
step of a token. At such a row a value of step 1 is right if the row is step 1's, and wrong
elsewhere: only there it is stored. A value that has an axis of its own for the steps is stored at
each row for the step of that row.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import sympy

from archc.dims import Axis
from archc.ir import chunk as ck
from archc.ir import layer as ir
from archc.ir.graph import Graph, Node
from archc.ir.refusal import Refusal


@dataclass(frozen=True)
class Right:
    """Where a value is right: at the rows of step `step` (-1: the last), or with `axis`, which is
    then an axis of the value: at every row for the step of that row. `row` are the rows of a
    chunk."""

    row: Axis
    step: int | None = None
    axis: str = ""


TOKENS = Right(Axis("", sympy.Integer(1)))
"""Of values whose rows are tokens, one each: they meet no rows of another kind."""


def steps_of(row: Axis) -> sympy.Expr:
    """How many rows of a chunk a token has, whatever a spec calls that number."""
    return row.size / ck.CHUNK


class MicroSteps:
    """Where the values of a kernel's graph are right, None for everywhere; `loaded` is read."""

    def __init__(self, graph: Graph, loaded: Collection[int]):
        self.graph, self.loaded = graph, loaded
        self.found: dict[int, Right | Refusal | None] = {}

    def of(self, id: int) -> Right | Refusal | None:
        """Where a value is right that the kernel stores; a Refusal where rows of several kinds
        meet, with the node that a kernel before it must make."""
        found = self._found(id)
        return None if found == TOKENS else found

    def met(self, node: Node) -> Refusal | None:
        """The refusal of a value along tokens as rows again, unless each row has what is right
        there: what was read at the first row of a token is wanted by all of them."""
        right = self.of(node.operands[0])
        if isinstance(right, Right):
            return None if right.axis == node.op.steps else self._refused(node)
        return right

    def _found(self, id: int) -> Right | Refusal | None:
        if id not in self.found:
            self.found[id] = self._of(self.graph[id])
        return self.found[id]

    def _of(self, node: Node) -> Right | Refusal | None:
        if isinstance(node.op, ck.Tokens):
            steps, row = node.op.steps, self.graph[node.operands[0]].type.axis(node.op.row)
            return TOKENS if steps is None else Right(row, axis=steps.name)
        found = [self._found(o) for o in node.operands if o not in self.loaded]
        refused = next((each for each in found if isinstance(each, Refusal)), None)
        kinds = {each for each in found if isinstance(each, Right)}
        if refused is not None or not kinds:
            return refused
        if len(kinds) > 1:
            return self._refused(node)
        (right,) = kinds
        return right if right == TOKENS else self._after(node, right)

    def _after(self, node: Node, right: Right) -> Right | Refusal:
        """Where the value of an op is right whose operands are."""
        op = node.op
        if isinstance(op, ck.Select) and op.axis == right.axis:
            return Right(right.row, op.index)
        if isinstance(op, ck.Place) and right.step == op.index:
            return Right(right.row, axis=op.axis.name)
        crosses = isinstance(op, ir.Reduce) and right.axis in op.axes
        if isinstance(op, ir.Elementwise | ir.Reduce) and not crosses:
            return right
        if isinstance(op, ir.Contract) and _is_same(self.graph, node):
            return right
        return self._refused(node)

    def _refused(self, node: Node) -> Refusal:
        """The tokens of several rows from which a value comes stay with PyTorch."""
        for id in sorted(self.graph.ancestors(node.id)):
            found = self.graph[id]
            tokens = isinstance(found.op, ck.Tokens) and found.op.steps is not None
            if tokens and id not in self.loaded:
                return Refusal(id, "rows of several steps of a token meet")
        raise AssertionError(f"node {node.id} has no tokens of several rows")


def _is_same(graph: Graph, node: Node) -> bool:
    """Whether a contraction gives its operand with the axes in another order, and no more."""
    labels = {label: axis.name for label, axis in node.op.out}
    (names,), own = node.op.ins[:1], graph[node.operands[0]].type.names
    return len(node.operands) == 1 and [labels.get(label) for label in names] == [*own]
