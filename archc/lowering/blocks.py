"""Products with matrices that are too large to be taken whole: sums over blocks of a dim.

A matrix between two dims, as a state, comes from memory; whole, it is in shared memory while it is
multiplied. Which way is taken is known when machine code is made, and the other is then nowhere in
it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import sympy

from archc.dims import Axis
from archc.ir import chunk as ck
from archc.ir.graph import Node
from archc.ir.kernel import POINTWISE, WHOLE, WHOLE_EXACT
from archc.ir.refusal import Refusal
from archc.lowering.products import Summed
from archc.lowering.values import Index, Made, Padded, Values
from archc.tile.compose import ceil_div
from archc.tile.handle import Tile
from archc.tile.language import Dim

if TYPE_CHECKING:
    from archc.lowering.kernel_values import KernelValues

Product = Callable[[Values, Node, Padded, Padded, Summed], Made]


def product_by_blocks(
    v: KernelValues, node: Node, tiles: Sequence[Padded], found: Summed, large: Sequence[int],
    product: Product,
) -> Made:  # fmt: skip
    """The product of two tiles of which those in `large` are matrices between dims: whole, or by
    blocks of a dim that is summed."""
    free = [x for x, axis in found.axes.items() if not v.is_blocked(axis)]
    label = next((x for x in free if all(x in tiles[each].labels for each in large)), None)
    others = [tile for each, tile in enumerate(tiles) if each not in large]
    a, b = tiles
    if label is None or any(len(x.labels) != 2 or label not in x.labels for x in others):
        return product(v, node, a, b, found)
    elements = sympy.Mul(*(dim.length for dim in tiles[large[0]].tile.dims))
    most = WHOLE_EXACT if v.is_exact(node) else WHOLE
    with v.k.branch(held_whole(v, elements, most)) as whole, v.inner():
        made = product(v, node, a, b, found)
        if isinstance(made, Refusal):
            return made
        whole.give(made.tile)
    with v.k.otherwise(whole) as blocks, v.inner():
        total = v.k.full(0.0, *made.tile.dims)
        with part_by_part(v, found.axes[label], label, total) as (turn, index):
            parts = _parts(v, node, tiles, found, large, label, index)
            if isinstance(parts, Refusal):
                return parts
            part = str(index.label)
            rest = {part if n == label else n: axis for n, axis in found.axes.items()}
            done = product(v, node, *parts, Summed(found.owns, rest, made.labels))
            if isinstance(done, Refusal):
                return done
            turn.next(turn.carried[0] + done.tile.ordered(*made.labels))
        blocks.give(turn.results[0])
    return replace(made, tile=whole.results[0])


def held_whole(v: KernelValues, elements: sympy.Expr, most: int) -> Tile:
    """Whether a program may hold a matrix of so many elements at once."""
    return v.k.noted(v.k.at_most(elements, most), f"a program holds {most} numbers of one at once")


@contextmanager
def part_by_part(v: KernelValues, axis: Axis, label: str, *carried: Tile) -> Iterator[tuple]:
    """A loop over blocks of an axis, with the index of one."""
    length, name = v.part_length(axis), f"{label}_part"
    with v.k.loop(0, ceil_div(v.size(axis.size), length), *carried) as turn, v.inner():
        at = turn.index * length + v.k.iota(name, length)
        index = Index(at, False, v.inside(axis.name, at < v.k.lift(v.size(axis.size))))
        v.borrow(name, index)
        yield turn, index


def _parts(
    v: KernelValues, node: Node, tiles: Sequence[Padded], found: Summed, large: Sequence[int],
    label: str, index: Index,
) -> tuple[Padded, Padded] | Refusal:  # fmt: skip
    """Both factors at some indices of an axis: from memory again, or of what is in registers."""
    made = []
    for each, (operand, own) in enumerate(zip(node.operands, found.owns, strict=True)):
        if each not in large and not _is_pointwise(v, operand, found.axes[label].name):
            made.append(_columns(v, tiles[each], label, index))
            continue
        there = {n: index if i.label == label else i for n, i in own.items()}
        x = v.stored(operand, there)
        if isinstance(x, Refusal):
            return x
        made.append(x)
    return made[0], made[1]


def _is_pointwise(v: KernelValues, id: int, axis: str) -> bool:
    """Whether a value is made from memory without a look at other elements along an axis."""
    node = v.frame.graph[id]
    if axis not in node.type.names or v.is_loaded(id):
        return True
    pointwise = isinstance(node.op, (*POINTWISE, ck.Detach))
    return pointwise and all(_is_pointwise(v, operand, axis) for operand in node.operands)


def _columns(v: KernelValues, x: Padded, label: str, index: Index) -> Padded:
    """Some columns of what is in registers."""
    (row,) = (each for each in x.labels if each != label)
    x, part = x.wide().ordered(row, label), str(index.label)
    (rows, columns), (own,) = x.tile.dims, index.at.dims
    block = Dim(f"{label}_block", sympy.floor(columns.length / own.length))
    parts = x.tile.shaped(rows, block, own)
    first = v.k.iota(block.name, block.length) * own.length + v.k.iota(part, own.length)
    chosen = v.k.where(first.equals(index.at), parts, 0.0).sum(block.name)
    known = (frozenset(part if n == label else n for n in each) for each in (x.zero, x.finite))
    return Padded(chosen, *known, product=x.product, turned=x.turned)
