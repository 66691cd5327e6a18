"""Products of small matrices of a token: index by index of the small dim, in registers.

    y[i, d] = sum[j](A[i, j] * x[j, d])     a column of A times a row of x, added up over j
    d_A[i, j] = sum[d](d_y[i, d] * x[j, d]) the row of each i by itself, put in its place

A tile of all three dims is never made. Of the three dims one is last in two of the tensors: it is
that of vectors (d), and no loop goes along it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from archc.dims import Axis
from archc.ir.graph import Node
from archc.ir.refusal import Refusal
from archc.lowering.algebra import reduced
from archc.lowering.products import Own, Summed, is_pointwise, places_of, product
from archc.lowering.token_space import few_labels
from archc.lowering.values import Index, Made, Padded, Place
from archc.tile.handle import Tile

if TYPE_CHECKING:
    from archc.lowering.token import TokenProgram


def index_by_index(v: TokenProgram, node: Node, place: Place) -> Made | None:
    """A product of two matrices of a token; None where it is none, or has no dim to go along."""
    out = {label: place[axis.name] for label, axis in node.op.out}
    few = few_labels(node) if v.stream in out else set()
    found = places_of(v, node, out) if few else None
    if not isinstance(found, Summed):
        return found
    chosen = _chosen(v, node, found, few)
    if chosen is None:
        return None
    label, axis = chosen
    v.few[axis.size] = None
    return _in_turn(v, node, found, label, axis)


def _chosen(v: TokenProgram, node: Node, found: Summed, few: set[str]) -> tuple[str, Axis] | None:
    """The dim to go along, with its axis: one that is summed, or else that of one operand, which
    no tile has all of then: the one that least else reads."""
    first, second = node.op.ins
    each = [*zip(node.operands, node.op.ins, found.owns, strict=True)]
    places = [
        (label, name, index)
        for _, labels, own in sorted(each, key=lambda e: len(v.frame.graph.users(e[0])))
        for label, (name, index) in zip(labels, own.items(), strict=True)
        if label in few and index.whole and index.label
    ]
    for summed in (True, False):
        for label, name, index in places:
            shared = label in first and label in second
            if shared == summed == (index.label in found.axes):
                return str(index.label), v.axes[name]
    return None


def _in_turn(v: TokenProgram, node: Node, found: Summed, label: str, axis: Axis) -> Made:
    """The product, an index of a dim after the other."""
    given = []
    for operand, own in zip(node.operands, found.owns, strict=True):
        there = any(index.label == label for index in own.values())
        x = None if there and is_pointwise(v, operand) else v.value(operand, own)
        if isinstance(x, Refusal):
            return x
        given.append(x)
    labels = {i.label for own in found.owns for i in own.values() if i.label}
    order = v.sorted({str(each) for each in labels if each not in found.axes})
    dims = {i.label: d for own in found.owns for i in own.values() for d in i.at.dims}
    zeros = v.k.full(0.0, *(dims[each] for each in order)).named(node.name or "total")
    rest = Summed(found.owns, {n: a for n, a in found.axes.items() if n != label}, order)
    with v.k.loop(0, v.size(axis.size), zeros, index=axis.base) as turn, v.inner():
        here = v.k.iota(axis.base, v.length(axis)).along(**{axis.base: label}).equals(turn.index)
        made = _turn(v, node, rest, label, Index(turn.index), here, given)
        if isinstance(made, Refusal):
            turn.next(*turn.carried)
            return made
        so_far, tile = turn.carried[0], made.wide().tile
        if label in found.axes:
            turn.next(v.k.apply("add", so_far, tile, dims_in=order))
        else:
            turn.next(v.k.apply("where", here, tile, so_far, dims_in=order))
    return Padded(turn.results[0], made.zero - {label})


def _turn(
    v: TokenProgram, node: Node, rest: Summed, label: str, index: Index, here: Tile,
    given: list[Padded | None],
) -> Made:  # fmt: skip
    """The product at one index of a dim: what enters is read there, what is made picked."""
    tiles = []
    for operand, own, known in zip(node.operands, rest.owns, given, strict=True):
        if known is None:
            one: Own = {n: index if i.label == label else i for n, i in own.items()}
            x = v.value(operand, one)
        elif label in known.labels:
            picked = Padded(v.k.where(here, known.tile, 0.0), known.zero | {label}, known.finite)
            x = reduced(v, picked, (label,))
        else:
            x = known
        if isinstance(x, Refusal):
            return x
        tiles.append(x)
    return product(v, node, tiles[0], tiles[1], rest)
