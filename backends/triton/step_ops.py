"""What kernels that walk tokens have besides the ops of `ops.py`."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from archc.backends.triton.algebra import masked, part
from archc.backends.triton.kernel import KernelWriter
from archc.backends.triton.lines import NotInKernel
from archc.backends.triton.ops import OPS
from archc.backends.triton.tile import Index, Tile

from archc.ir import layer as ir
from archc.ir.graph import Node


def gather(kernel: KernelWriter, node: Node, place: Mapping[str, Index]) -> Tile:
    """A value at one place of an axis, as the micro-steps of a token are."""
    x, index = node.operands
    at = kernel.pull(index, part(kernel, index, place))
    if at.labels:
        raise NotInKernel("a table of rows that are looked up")
    return kernel.pull(x, {**part(kernel, x, place), node.op.axis: Index(at.text)})


def solve(kernel: KernelWriter, node: Node, place: Mapping[str, Index]) -> Tile:
    """`z = tile_conjugate_gradients(A, b, steps)`, for one system."""
    op = node.op
    (system,) = (axis for axis in node.type.axes if axis.name == op.row)
    inner = [name for name in node.type.names if place[name].label not in (None, op.row)]
    if inner or not place[op.row].whole:
        raise NotInKernel("several systems in one program")
    matrix, vector = node.operands
    col = kernel.axis_of(matrix, op.col)
    at = {**part(kernel, matrix, place), op.col: kernel.whole(col)}
    a = kernel.arranged(kernel.pull(matrix, at), (op.row, op.col))
    a = masked(kernel, a, (op.row, op.col))
    b = masked(kernel, kernel.pull(vector, part(kernel, vector, place)), (op.row,))
    steps = op.iterations if op.iterations is not None else 2 * system.size
    kernel.pieces.add("tile_conjugate_gradients")
    text = f"tile_conjugate_gradients({a.text}, {b.text}, {kernel.size(steps)})"
    return Tile(kernel.let(node.name or "solved", text), (op.row,), clean=b.clean)


STEP_OPS: dict[type, Callable[..., Tile]] = {**OPS, ir.Gather: gather, ir.Solve: solve}
