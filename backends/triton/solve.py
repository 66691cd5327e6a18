"""Systems that are given by their products as lines of a kernel: conjugate gradients on tiles."""

from __future__ import annotations

from collections.abc import Mapping

from archc.backends.triton.algebra import masked, number_text, part
from archc.backends.triton.kernel import Frame, KernelWriter
from archc.backends.triton.lines import NotInKernel
from archc.backends.triton.tile import Index, Tile, along

from archc.ir.graph import Node

Place = Mapping[str, Index]

TINY = 1.4e-14
"""The share of a squared length that float32 does not see: the square of its rounding."""


def conjugate(kernel: KernelWriter, node: Node, place: Place) -> Tile:
    """A loop of products with the matrix. A system that is solved stays as it is, as one whose
    right side is 0 does."""
    (over,) = node.op.over if len(node.op.over) == 1 else (None,)
    labelled = [name for name in place if place[name].label]
    if over not in labelled or len(labelled) != 2:
        raise NotInKernel(f"systems over several dims, or of {len(labelled)} dims in a program")
    kernel.whole_along(node, place, *labelled)
    right = kernel.pull(node.operands[0], part(kernel, node.operands[0], place))
    labels = tuple(name for name in kernel.order if name in labelled)
    if set(right.labels) != set(labels):
        raise NotInKernel("a right side that is the same for several systems")
    right = masked(kernel, kernel.arranged(right, labels), (over,))
    _load(kernel, node, place, right)
    return _loop(kernel, node, place, right, over)


def _product(kernel: KernelWriter, node: Node, place: Place, p: Tile) -> Tile:
    """The matrix times p, in float32."""
    outer, op = kernel.frame, node.op
    captured = dict(zip(op.captures, node.operands[1:], strict=True))
    kernel.frame = Frame(op.body, outer, captured, {"p": p}, exact=True)
    y = kernel.pull(op.body.outputs["product"], place)
    kernel.frame = outer
    return y


def _load(kernel: KernelWriter, node: Node, place: Place, p: Tile) -> None:
    """What the products need and what does not change is read before the loop."""
    outer, made, texts = kernel.frame, dict(kernel.made), dict(kernel.texts)
    count = len(kernel.writer.lines)
    _product(kernel, node, place, p)
    wanted = [key for key in kernel.made if key not in made and key[1] is outer]
    del kernel.writer.lines[count:]
    kernel.made, kernel.texts = made, texts
    for id, _, own in wanted:
        kernel.pull(id, dict(own))


def _loop(kernel: KernelWriter, node: Node, place: Place, right: Tile, over: str) -> Tile:
    """Conjugate gradients from 0."""
    let, line, names = kernel.let, kernel.writer.line, kernel.names
    labels, axis = right.labels, right.labels.index(over)
    (row,) = (label for label in labels if label != over)
    z, r, p, rest = (names.fresh(name) for name in ("solved", "residual", "direction", "rest"))
    line(f"{z}, {r}, {p} = tl.zeros_like({right.text}), {right.text}, {right.text}")
    line(f"{rest} = tl.sum({right.text} * {right.text}, {axis})")
    done = let("done", f"{rest} * {TINY}")
    kept, texts = dict(kernel.made), dict(kernel.texts)
    with kernel.writer.block(f"for _ in range({_count(node, over)}):"):
        given = Tile(p, labels, clean=right.clean, dot=True)
        y = kernel.arranged(_product(kernel, node, place, given), labels)
        y = masked(kernel, y, (over,))
        going = let("going", f"{rest} > {done}")
        curved = let("curved", f"tl.where({going}, tl.sum({p} * {y.text}, {axis}), 1.0)")
        scale = let("scale", f"tl.where({going}, {rest} / {curved}, 0.0)")
        line(f"{z} += {along(scale, row, labels)} * {p}")
        line(f"{r} -= {along(scale, row, labels)} * {y.text}")
        left = let("left", f"tl.sum({r} * {r}, {axis})")
        turn = let("turn", f"tl.where({going}, {left} / tl.where({going}, {rest}, 1.0), 0.0)")
        line(f"{p} = {r} + {along(turn, row, labels)} * {p}")
        line(f"{rest} = {left}")
    kernel.made, kernel.texts = kept, texts
    return Tile(z, labels, clean=right.clean, dot=True)


def _count(node: Node, over: str) -> str:
    """How many turns: as many as are asked for, or enough for rounding."""
    if node.op.iterations is not None:
        return number_text(node.op.iterations)
    return f"2 * {number_text(node.type.axis(over).size)}"
