"""The gradient of an inverse T = (I - A)^-1 that a walk applies: Y = T R at every chunk.

What arrives is dY R^T, of which dA = T^T dY R^T T^T. The walk back makes dR = T^T dY, and the walk
has made Y: dA = dR Y^T.
"""

from __future__ import annotations

from collections.abc import Iterator

from archc.autodiff.gradient_builder import Builder
from archc.ir import layer as ir
from archc.ir.graph import Graph, Node


def of_walked_solution(b: Builder, node: Node, term: int) -> int | None:
    """dY R^T -> dR Y^T, where walks make all four, if the cotangent is of that form."""
    operands = b.graph[term].operands
    if not isinstance(b.graph[term].op, ir.Contract) or len(operands) != 2:
        return None
    for d, rows in (operands, operands[::-1]):
        y = _applied(b.graph, node, rows, node.op.col)
        d_rows = _applied(b.graph, node, d, node.op.row)
        if y is not None and d_rows is not None:
            return _outer(b, node, b.add(*d_rows), b.add(*y))
    return None


def _applied(graph: Graph, node: Node, id: int, over: str) -> tuple[ir.Result, int] | None:
    """The result of a walk that is the inverse times the result `id` of it, summed over an axis."""
    result = graph[id]
    if not isinstance(result.op, ir.Result) or not isinstance(
        graph[result.operands[0]].op, ir.Recurrence
    ):
        return None
    recurrence = graph[result.operands[0]]
    body = recurrence.op.body
    captured = dict(zip(recurrence.op.captures, recurrence.operands, strict=False))
    matrices = {
        n.id for n in body
        if isinstance(n.op, ir.Input) and captured.get(n.op.name) == node.id
    }  # fmt: skip
    products = set(_products(body, matrices, body.outputs[result.op.name], over))
    for name, made in body.outputs.items():
        if made in products:
            return ir.Result(name), recurrence.id
    return None


def _products(body: Graph, matrices: set[int], rows: int, over: str) -> Iterator[int]:
    """The products of one of these matrices and of rows, summed over one axis of the matrix that
    the rows have too."""
    for user in body.users(rows):
        product = body[user]
        if not isinstance(product.op, ir.Contract) or len(set(product.operands)) != 2:
            continue
        (matrix,) = set(product.operands) - {rows}
        labels = dict(zip(product.operands, product.op.ins, strict=True))
        summed = {x for ins in product.op.ins for x in ins} - {x for x, _ in product.op.out}
        names = body[matrix].type.names
        of_matrix = [n for n, label in zip(names, labels[matrix], strict=True) if label in summed]
        of_rows = [
            n for n, label in zip(body[rows].type.names, labels[rows], strict=True)
            if label in summed
        ]  # fmt: skip
        if matrix in matrices and of_matrix == of_rows == [over]:
            yield user


def _outer(b: Builder, node: Node, d: int, y: int) -> int:
    """dR Y^T: R has the columns where Y has the rows."""
    row, col = node.op.row, node.op.col
    of_d = [row if name == col else name for name in b.names(d)]
    of_y = [col if name == row else name for name in b.names(y)]
    return b.contract([(d, of_d), (y, of_y)], [(axis.name, axis) for axis in node.type.axes])
