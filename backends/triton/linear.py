"""A matrix along the rows of a chunk as lines of a kernel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from archc.backends.triton.algebra import masked, part, text_of
from archc.backends.triton.kernel import KernelWriter
from archc.backends.triton.lines import NotInKernel
from archc.backends.triton.rows import scan
from archc.backends.triton.tile import Index, Tile, along

from archc.ir import chunk as ck
from archc.ir.graph import Node

Place = Mapping[str, Index]


def any_scan(kernel: KernelWriter, node: Node, place: Place) -> Tile:
    """A scan of numbers, or of a matrix."""
    return scan(kernel, node, place) if node.op.matrix is None else matrix_scan(kernel, node, place)


def matrix_scan(kernel: KernelWriter, node: Node, place: Place) -> Tile:
    """`scan = tile_matrix_scan(x, A_t, ...)`, where x has what the value before the rows adds."""
    op: ck.Scan = node.op
    assert op.matrix is not None, "numbers are no matrix along the rows"
    (row, col), (a, b, _) = op.matrix, node.operands
    graph = kernel.frame.graph
    kernel.whole_along(node, place, op.axis, col)
    if op.axis in graph[a].type.names:
        raise NotInKernel("a scan of another matrix at every row")
    dims = tuple(name for name in place if place[name].label)
    if set(dims) != {op.axis, col}:
        raise NotInKernel("a scan of matrices with further dims")
    there = {**part(kernel, a, place), col: place[col]}
    there[row] = replace(kernel.whole(graph[a].type.axis(row)), label=row)
    matrix = kernel.arranged(kernel.pull(a, there), (col, row))
    matrix = masked(kernel, matrix, (col, row))
    x = _rows(kernel, b, place, (op.axis, col))
    x = _with_first(kernel, node, (row, col), matrix, x, place)
    kernel.pieces.add("tile_matrix_scan")
    sizes = [kernel.lengths[op.axis], kernel.lengths[col], kernel.levels(op.axis), str(op.reverse)]
    text = f"tile_matrix_scan({x.text}, {matrix.text}, {', '.join(sizes)}, PRECISION)"
    return Tile(kernel.let(node.name or "scan", text), x.labels, clean=frozenset({col}))


def _rows(kernel: KernelWriter, operand: int, place: Place, labels: tuple[str, str]) -> Tile:
    """A value as [row, dim], 0 off the dim."""
    x = kernel.pull(operand, part(kernel, operand, place))
    x = kernel.arranged(x, tuple(label for label in labels if label in x.labels))
    if x.labels != labels:
        x = replace(x, text=kernel.let("wide", kernel.broadcast(x, labels)), labels=labels)
    return masked(kernel, x, labels)


def _with_first(
    kernel: KernelWriter, node: Node, dims: tuple[str, str], matrix: Tile, x: Tile, place: Place
) -> Tile:
    """The addends with the matrix times the value before the first row in that row."""
    op: ck.Scan = node.op
    row, col = dims
    first = kernel.pull(node.operands[2], part(kernel, node.operands[2], place))
    if first.text in ("0", "0.0"):
        return x
    given = masked(kernel, first, (col,))
    moved = kernel.let("moved", f"{matrix.text} * {text_of(kernel, given, (col, row))}")
    added = kernel.let("first", f"tl.sum({moved}, 0)")
    end = f"{kernel.size_text(node.type.axis(op.axis))} - 1" if op.reverse else "0"
    chosen = along(f"({place[op.axis].text} == {end})", op.axis, x.labels)
    text = f"{x.text} + tl.where({chosen}, {added}[None, :], 0.0)"
    return replace(x, text=kernel.let("rows", text))
