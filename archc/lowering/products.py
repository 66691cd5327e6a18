"""Sums of products over axes: of matrices, of tiles, or index by index."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from archc.dims import Axis
from archc.ir import layer as ir
from archc.ir.free_names import marked
from archc.ir.graph import Node
from archc.ir.kernel import POINTWISE
from archc.ir.refusal import Refusal
from archc.lowering.algebra import reduced
from archc.lowering.values import Index, Made, Padded, Place, Values

Own = dict[str, Index]

LEFT, RIGHT = 2, 1
"""The cost of turning a product of matrices around, for the left and the right factor of another:
the left one is read from registers, and some compilers read it wrong."""


@dataclass(frozen=True)
class Summed:
    """A contraction at a place: where each operand is wanted, the axes that are summed by the names
    of their dims, and the order of the dims that stay."""

    owns: Sequence[Own]
    axes: Mapping[str, Axis]
    order: tuple[str, ...]


def contract(v: Values, node: Node, place: Place) -> Made:
    """A product of matrices, or a sum of elementwise products."""
    found = places_of(v, node, {label: place[axis.name] for label, axis in node.op.out})
    if isinstance(found, Refusal):
        return found
    if len(found.owns) == 1:
        x = v.stored(node.operands[0], found.owns[0])
        if isinstance(x, Refusal) or not found.axes:
            return x
        axes = [axis.renamed(label) for label, axis in found.axes.items()]
        return reduced(v, x.wide(), tuple(found.axes), axes=axes)
    pointwise = not v.has_few and all(is_pointwise(v, operand) for operand in node.operands)
    if _is_wide(found) and (pointwise or any(map(v.is_deep, node.operands))):
        made = _in_turn(v, node, found)
        if pointwise or not isinstance(made, Refusal) or not made.moved:
            return made
    if found.axes and _count(found) > 3 and not v.has_few:
        return v.refused(node, "a sum of products with four dims, too many for a program")
    tiles = []
    for operand, own in zip(node.operands, found.owns, strict=True):
        x = v.stored(operand, own)
        if isinstance(x, Refusal):
            return x
        tiles.append(x)
    large = v.matrices(node, found.owns)
    if large and all(is_pointwise(v, node.operands[each]) for each in large):
        return v.by_blocks(node, tiles, found, large, product)
    return product(v, node, tiles[0], tiles[1], found)


def places_of(v: Values, node: Node, out: Mapping[str, Index]) -> Summed | Refusal:
    """Where each operand is wanted; an axis that is summed has a dim of its own."""
    graph, taken = v.frame.graph, {index.label for index in out.values()}
    owns: list[Own] = []
    summed: dict[str, Axis] = {}
    inner: dict[str, str] = {}
    for labels, operand in zip(node.op.ins, node.operands, strict=True):
        own: Own = {}
        for label, axis in zip(labels, graph[operand].type.axes, strict=True):
            if label in out:
                own[axis.name] = out[label]
                continue
            given = v.indices.get(axis.name) or v.indices.get(label)
            if given is not None and given.label is None:
                reason = f"sum over {axis.name}, of which a program has one index"
                return v.refused(node, reason)
            if label not in inner:
                inner[label] = marked(label, {*taken, *inner.values()})
            own[axis.name] = v.whole(axis, inner[label])
            summed[inner[label]] = axis
        owns.append(own)
    order = tuple(str(index.label) for index in out.values() if index.label)
    return Summed(owns, summed, order)


def _is_wide(found: Summed) -> bool:
    """Whether a tile of three dims would hold the products, and no product of matrices does."""
    first, second = ({i.label for i in own.values() if i.label} for own in found.owns)
    matrices = len(found.axes) == 1 and len(first) == len(second) == 2 and len(first | second) == 3
    return bool(found.axes) and len(first | second) > 2 and not matrices


def _count(found: Summed) -> int:
    """The number of dims of a tile of all products."""
    return len({index.label for own in found.owns for index in own.values() if index.label})


def is_pointwise(v: Values, id: int) -> bool:
    """Whether a value is made from memory without a look at other elements."""
    node = v.frame.graph[id]
    if isinstance(node.op, ir.Input) or v.is_loaded(id):
        return not v.is_carried(node)
    renamed = isinstance(node.op, ir.Contract) and len(node.op.ins) == 1
    renamed = renamed and len(node.op.out) == len(set(node.op.ins[0])) == len(node.op.ins[0])
    pointwise = isinstance(node.op, POINTWISE) or renamed
    return pointwise and all(is_pointwise(v, operand) for operand in node.operands)


def term(v: Values, node: Node, place: Place, axis: Axis, index: Index) -> Made:
    """The addend of one index of a dim in a sum over it."""
    found = places_of(v, node, {label: place[each.name] for label, each in node.op.out})
    if isinstance(found, Refusal):
        return found
    (label,) = (name for name, each in found.axes.items() if each == axis)
    rest = {name: other for name, other in found.axes.items() if name != label}
    owns = [{n: index if i.label == label else i for n, i in own.items()} for own in found.owns]
    tiles = []
    for operand, own in zip(node.operands, owns, strict=True):
        x = v.value(operand, own)
        if isinstance(x, Refusal):
            return x
        tiles.append(x)
    if len(tiles) == 1:
        return reduced(v, tiles[0], tuple(rest), axes=[*rest.values()])
    return product(v, node, tiles[0], tiles[1], Summed(owns, rest, found.order))


def _in_turn(v: Values, node: Node, found: Summed) -> Made:
    """The elements of one index after the other, added up in a loop."""
    free = ((label, axis) for label, axis in found.axes.items() if not v.is_blocked(axis))
    label, axis = next(free, ("", None))
    if axis is None:
        return v.refused(node, "a tile of three dims, of a block of what is summed")
    rest = {name: other for name, other in found.axes.items() if name != label}
    labels = [i.label for own in found.owns for i in own.values() if i.label]
    order = v.sorted([each for each in dict.fromkeys(labels) if each not in found.axes])
    dims = {d.name: d for own in found.owns for i in own.values() for d in i.at.dims}
    zeros = v.k.full(0.0, *(dims[each] for each in order)).named(node.name or "total")
    with v.k.loop(0, v.size(axis.size), zeros, index=axis.name) as turn, v.inner():
        one = Index(turn.index)
        owns = [{n: one if i.label == label else i for n, i in own.items()} for own in found.owns]
        tiles = []
        for operand, own in zip(node.operands, owns, strict=True):
            x = v.value(operand, own)
            if isinstance(x, Refusal):
                turn.next(*turn.carried)
                return x
            tiles.append(x)
        made = product(v, node, tiles[0], tiles[1], Summed(owns, rest, order))
        if isinstance(made, Refusal):
            turn.next(*turn.carried)
            return made
        turn.next(v.k.apply("add", turn.carried[0], made.tile, dims_in=order))
    return Padded(turn.results[0], made.zero)


def product(v: Values, node: Node, a: Padded, b: Padded, found: Summed) -> Made:
    """The sum of a product over some dims: a product of matrices where it is one. What is 0 in one
    factor off an axis must be finite in the other, so both are 0 there."""
    summed = found.axes
    b = v.masked(b, tuple(summed))
    a = v.masked(a, tuple(summed))
    for label, axis in summed.items():
        dim = v.dim(label, axis)
        a = a if label in a.labels else v.over(a, (dim, *a.tile.dims))
        b = b if label in b.labels else v.over(b, (dim, *b.tile.dims))
    rows = [label for label in a.labels if label not in summed]
    cols = [label for label in b.labels if label not in summed]
    if len(summed) == 1 and len(rows) == len(cols) == 1 and rows != cols:
        return dot(v, node, a, b, next(iter(summed)), found.order)
    a, b = a.wide(), b.wide()
    made = v.k.apply("mul", a.tile, b.tile, dims_in=v.joined(a, b))
    x = Padded(made, a.zero | b.zero, a.finite & b.finite)
    return reduced(v, x, tuple(summed))


def dot(
    v: Values, node: Node, a: Padded, b: Padded, label: str, order: tuple[str, ...] = ()
) -> Made:
    """A product of matrices, with its dims in that order if it may be. No sum of an earlier one is
    turned around: the other factor is, and the product comes out turned."""
    if v.frame.exact:
        a, b = a.wide(), b.wide()
    (row,) = (own for own in a.labels if own != label)
    (col,) = (own for own in b.labels if own != label)
    turned = turns(a, b, label), turns(b, a, label)
    if turned[1] < turned[0] or (turned[0] == turned[1] and order == (col, row)):
        a, b, row, col = b, a, col, row
    if min(turned) >= LEFT:
        reason = "both factors are products of matrices, and the left one turned around"
        return v.refused(node, reason)
    left, right = a.ordered(row, label), b.ordered(label, col)
    tile = v.multiplied(node, left, right)
    return Padded(tile, (a.zero & {row}) | (b.zero & {col}), product=True)


def turns(left: Padded, right: Padded, label: str) -> int:
    """The operands of left @ right that come from a product of matrices and are transposed."""
    before = left.product and (left.labels[0] == label) != left.turned
    after = right.product and (right.labels[0] != label) != right.turned
    return LEFT * before + RIGHT * after
