"""Tokens of several rows: which rows of a chunk are right for a value along tokens.

Where a token takes several steps, the rows of a chunk are steps, and every row is the row of one
step of a token. At such a row a value of step 1 is right if the row is step 1's, and wrong
elsewhere: only there it is stored. A value that has an axis of its own for the steps is stored at
each row for the step of that row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from archc.backends.triton.lines import NotInKernel

from archc.dims import Axis
from archc.ir import chunk as ck
from archc.ir import layer as ir
from archc.ir.graph import Graph, Node


@dataclass(frozen=True)
class Right:
    """Where a value is right: at the rows of step `step`, or with `axis`, which is then an axis of
    the value: at every row for the step of that row. `row` are the rows of a chunk."""

    steps: Axis
    row: Axis
    step: int | None = None
    axis: str = ""


class Micro:
    """Where the values of a kernel's graph are right, None for everywhere; `loaded` is read."""

    def __init__(self, graph: Graph, loaded: Mapping[int, str]):
        self.graph, self.loaded = graph, loaded
        self.found: dict[int, Right | None] = {}

    def of(self, id: int, own: bool = True) -> Right | None:
        """Where a value is right that the kernel stores, or (not `own`) has. NotInKernel with the
        node that PyTorch must do, where rows of several kinds meet."""
        if id in self.loaded and not own:
            return None
        if id not in self.found:
            self.found[id] = self._of(self.graph[id])
        return self.found[id]

    def _of(self, node: Node) -> Right | None:
        if isinstance(node.op, ck.Tokens):
            steps, row = node.op.steps, self.graph[node.operands[0]].type.axis(node.op.row)
            return None if steps is None else Right(steps, row, axis=steps.name)
        found = (self.of(operand, False) for operand in node.operands)
        kinds = {each for each in found if each is not None}
        if not kinds:
            return None
        if len(kinds) > 1:
            raise self._refused(node)
        (right,) = kinds
        return self._after(node, right)

    def _after(self, node: Node, right: Right) -> Right:
        """Where the value of an op is right whose operands are."""
        op = node.op
        if isinstance(op, ck.Select) and op.axis == right.axis and op.index >= 0:
            return Right(right.steps, right.row, op.index)
        if isinstance(op, ck.Place) and right.step == op.index:
            return Right(right.steps, right.row, axis=op.axis.name)
        crosses = isinstance(op, ir.Reduce) and right.axis in op.axes
        if isinstance(op, ir.Elementwise | ir.Reduce) and not crosses:
            return right
        raise self._refused(node)

    def _refused(self, node: Node) -> NotInKernel:
        """The tokens of several rows from which a value comes stay with PyTorch."""
        for id in sorted(self.graph.ancestors(node.id)):
            found = self.graph[id]
            tokens = isinstance(found.op, ck.Tokens) and found.op.steps is not None
            if tokens and id not in self.loaded:
                error = NotInKernel("rows of several steps of a token meet")
                error.node = id
                return error
        raise AssertionError(f"node {node.id} has no tokens of several rows")
