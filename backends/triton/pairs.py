"""Pairs of rows that decay along a dim as lines of a kernel: calls of pieces."""

from __future__ import annotations

from collections.abc import Mapping

from archc.backends.triton.algebra import masked, part
from archc.backends.triton.kernel import KernelWriter
from archc.backends.triton.lines import NotInKernel
from archc.backends.triton.rows import axis_of
from archc.backends.triton.tile import Index, Tile

from archc.ir.graph import Node

Place = Mapping[str, Index]


def gram(kernel: KernelWriter, node: Node, place: Place) -> Tile:
    """`gram = tile_decayed_gram(q, k, log_alpha, ...)`."""
    op = node.op
    kernel.whole_along(node, place, op.row, op.col.name)
    if len(op.over) != 1:
        raise NotInKernel("a sum over several dims of pairs that decay")
    dim, col = op.over[0], op.col.name
    a, b = (_rows_and(kernel, o, place, op.row, dim) for o in node.operands[:2])
    gates = _rows_and(kernel, node.operands[2], place, op.row, dim)
    text = _piece(kernel, node, "tile_decayed_gram", [a.text, b.text, gates.text], dim)
    made = kernel.let(node.name or "gram", text)
    kernel.lengths[col] = kernel.lengths[op.row]
    kernel.see(Tile("", (op.row, col)))
    if not (op.strict or op.exclusive):
        i = place[op.row].text
        own = kernel.let("own", f"tl.sum({a.text} * {b.text}, 1)")
        made = kernel.let(made, f"tl.where({i}[:, None] == {i}[None, :], {own}[:, None], {made})")
    return Tile(made, (op.row, col))


def _piece(kernel: KernelWriter, node: Node, piece: str, tiles: list[str], dim: str) -> str:
    """The call of a piece for pairs of rows that decay along a dim."""
    kernel.pieces.add(piece)
    row = node.op.row
    sizes = [kernel.lengths[row], kernel.lengths[dim], kernel.levels(row), str(node.op.exclusive)]
    return f"{piece}({', '.join([*tiles, *sizes])}, DOT, PRECISION)"


def _rows_and(kernel: KernelWriter, operand: int, place: Place, row: str, dim: str) -> Tile:
    """A value as [row, dim], 0 off the dim."""
    x = kernel.pull(operand, part(kernel, operand, place))
    if set(x.labels) != {row, dim}:
        raise NotInKernel(f"pairs of rows that decay, of a value with {', '.join(x.labels)}")
    return masked(kernel, kernel.arranged(x, (row, dim)), (dim,))


def _pairs(kernel: KernelWriter, node: Node, place: Place) -> tuple[Tile, str]:
    """The matrix [row, col] of an op, its first operand, and the dim of what decays."""
    op, first = node.op, node.operands[0]
    kernel.whole_along(node, place, op.row)
    dims = [name for name in node.type.names if name != op.row and place[name].label]
    if len(dims) != 1:
        raise NotInKernel(f"pairs of rows that decay along {len(dims)} dims")
    col = kernel.whole(axis_of(kernel, node, op.col))
    return kernel.pull(first, {**part(kernel, first, place), op.col: col}), dims[0]


def mix(kernel: KernelWriter, node: Node, place: Place) -> Tile:
    """`mix = tile_decayed_mix(A, v, log_alpha, ...)`."""
    op = node.op
    matrix, dim = _pairs(kernel, node, place)
    order = (op.col, op.row) if op.transpose else (op.row, op.col)
    pairs = kernel.arranged(matrix, order)
    value = _rows_and(kernel, node.operands[1], place, op.row, dim)
    gates = _rows_and(kernel, node.operands[2], place, op.row, dim)
    piece = "tile_decayed_mix_back" if op.transpose else "tile_decayed_mix"
    text = _piece(kernel, node, piece, [pairs.text, value.text, gates.text], dim)
    made = kernel.let(node.name or "mix", text)
    if not (op.strict or op.exclusive):
        i = place[op.row].text
        own = f"tl.sum(tl.where({i}[:, None] == {i}[None, :], {pairs.text}, 0.0), 1)"
        made = kernel.let(made, f"{made} + {kernel.let('own', own)}[:, None] * {value.text}")
    return Tile(made, (op.row, dim))


def gate_gradient(kernel: KernelWriter, node: Node, place: Place) -> Tile:
    """At r the sum over i >= r > j: what enters and leaves the span at each row, summed."""
    op = node.op
    matrix, dim = _pairs(kernel, node, place)
    tiles = [kernel.arranged(matrix, o).text for o in ((op.row, op.col), (op.col, op.row))]
    tiles += [_rows_and(kernel, o, place, op.row, dim).text for o in node.operands[1:]]
    made = _piece(kernel, node, "tile_decayed_gate_gradient", tiles, dim)
    return Tile(kernel.let(node.name or "d_gate", made), (op.row, dim))
