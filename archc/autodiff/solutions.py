"""The gradient of an inverse T = (I - A)^-1 that is applied: Y = T R, at once or by a walk at every
chunk.

What arrives is dY R^T, of which dA = T^T dY R^T T^T. The gradient of the product, or the walk back,
makes dR = T^T dY, and the product, or the walk, has made Y: dA = dR Y^T.
"""

from __future__ import annotations

from collections.abc import Iterator

from archc.autodiff.gradient_builder import Builder
from archc.autodiff.tensor import contract
from archc.ir import layer as ir
from archc.ir.graph import Graph, Node


def inverse(b: Builder, node: Node, d: int) -> list[int | None]:
    """dR Y^T of what arrives from products Y = T R; T^T d T^T of the rest."""
    found, rest = [], []
    for term in b.addends(d):
        solved = _of_product(b, node, term)
        solved = _of_walk(b, node, term) if solved is None else solved
        (rest if solved is None else found).append(term if solved is None else solved)
    if rest:
        wide = b.full(b.sum(rest), [node.type.axis(node.op.row), node.type.axis(node.op.col)])
        found.append(node.op.between(b, node, wide))
    return [node.op.below(b, node, b.sum(found))]


def _of_product(b: Builder, node: Node, term: int) -> int | None:
    """dY R^T -> dR Y^T, for a product Y = T R of a node T, if the cotangent is of that form."""
    for id in (id for id in b.graph.users(node.id) if _is_product(node, b.graph[id])):
        product = b.graph[id]
        at = product.operands.index(node.id)
        for d in b.graph[term].operands:
            if not set(b.names(d)) <= set(product.type.names):
                continue
            found = contract(b, product, d)
            right = found[1 - at]
            if found[at] == term and right is not None:
                return _outer_of(b, node, product, right)
    return None


def _is_product(node: Node, product: Node) -> bool:
    """Whether a node is T R for a matrix T of rows and columns, summed over the columns, which R
    has, as all of T's other axes but the rows."""
    if not ir.is_product(product.op):
        return False
    if product.operands.count(node.id) != 1:
        return False
    at = product.operands.index(node.id)
    labels, others = product.op.ins[at], product.op.ins[1 - at]
    row, col = (labels[node.type.names.index(name)] for name in (node.op.row, node.op.col))
    out = {label for label, _ in product.op.out}
    once = len(set(labels)) == len(labels) and len(set(others)) == len(others)
    kept = {*labels} - {col} <= out and col not in out
    return once and kept and {*labels} - {row} <= {*others} and row not in others


def _outer_of(b: Builder, node: Node, product: Node, d: int) -> int:
    """dR Y^T: its rows are those of R, its columns those of Y."""
    at = product.operands.index(node.id)
    labels, others = product.op.ins[at], product.op.ins[1 - at]
    row, col = (labels[node.type.names.index(name)] for name in (node.op.row, node.op.col))
    of_right = dict(zip(b.names(product.operands[1 - at]), others, strict=True))
    of_d = [row if of_right[name] == col else of_right[name] for name in b.names(d)]
    of_y = [col if label == row else label for label, _ in product.op.out]
    out = list(zip(labels, node.type.axes, strict=True))
    return b.contract([(d, of_d), (product.id, of_y)], out)


def _of_walk(b: Builder, node: Node, term: int) -> int | None:
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
    captured = ir.captured(recurrence)
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
