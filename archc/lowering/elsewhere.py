"""Lowering of values at other places of a dim: looked up, joined, cut and counted otherwise.

What memory has is loaded from there; what registers hold is taken out of all of the dim."""

from __future__ import annotations

from collections.abc import Sequence

import sympy

from archc.dims import Axis
from archc.ir import layer as ir
from archc.ir.graph import Graph, Node
from archc.ir.refusal import Refusal
from archc.lowering import algebra
from archc.lowering.values import Index, Made, Padded, Place, Values
from archc.tile.handle import Tile
from archc.tile.language import Dim

FLAT = "@flat"
"""The dim of all places of several dims."""


def gather(v: Values, node: Node, place: Place) -> Made:
    """A value at the places that an index has."""
    value, index = node.operands
    own = v.part(index, place)
    at = v.value(index, own)
    if isinstance(at, Refusal):
        return at
    if not at.labels:
        found = v.stored(value, {**v.part(value, place), node.op.axis: Index(at.tile)})
        return found if isinstance(found, Padded) else _taken(v, node, value, place, at.tile)
    mask = _inside(v, at.tile, v.frame.graph[value].type.axis(node.op.axis))
    for other in own.values():
        mask = mask if other.mask is None else mask & other.mask
    return _read(v, node, value, place, node.op.axis, at.tile, mask)


def scatter(v: Values, node: Node, place: Place) -> Made:
    """The entries of a run of a dim, which may turn around, in their places: 0 elsewhere."""
    value, index = node.operands
    into, axis = node.op.into, v.frame.graph[value].type.axis(node.op.axis)
    run = run_of(v.frame.graph, index, into)
    if run is None:
        return v.refused(node, "sums at places that are looked up")
    first, turns = run
    index_into = place[into.name]
    at = index_into.at - _number(v, first)
    if turns:
        size = Padded(_number(v, into.size))
        at = algebra.applied(v, "mod", [Padded(at), size], "int").tile
    mask = _inside(v, at, axis)
    mask = mask if index_into.mask is None else mask & index_into.mask
    found = _read(v, node, value, place, axis.name, at, mask)
    if isinstance(found, Refusal):
        return found
    found = found.wide()
    return Padded(v.k.where(mask, found.tile, 0.0), found.zero, found.finite)


def run_of(graph: Graph, index: int, into: Axis) -> tuple[sympy.Expr, bool] | None:
    """The first place of indices that follow each other, and whether they begin anew behind the
    last place of a dim; None if they are no such run."""
    op, turns = graph[index].op, False
    if op == ir.Elementwise("mod"):
        index, size = graph[index].operands
        if graph[size].op != ir.Constant(into.size):
            return None
        op, turns = graph[index].op, True
    first: sympy.Expr = sympy.Integer(0)
    if op == ir.Elementwise("add"):
        number, rest = graph[index].operands
        if isinstance(graph[rest].op, ir.Constant):
            number, rest = rest, number
        if not isinstance(graph[number].op, ir.Constant):
            return None
        first, op = graph[number].op.value, graph[rest].op
    if not isinstance(op, ir.Position) or op.axis.kind != "dim":
        return None
    return None if turns and op.axis.size != into.size else (first, turns)


def join(v: Values, node: Node, place: Place) -> Made:
    """The operand that a place lies in, as many places earlier as those before it have."""
    index, first, found = place[node.op.into.name], sympy.Integer(0), None
    for name, operand in zip(node.op.axes, node.operands, strict=True):
        axis = v.frame.graph[operand].type.axis(name)
        at = index.at if first == 0 else index.at - _number(v, first)
        mask = _inside(v, at, axis)
        mask = mask if index.mask is None else mask & index.mask
        x = _read(v, node, operand, place, name, at, mask)
        if isinstance(x, Refusal):
            return x
        tile = x.wide().tile
        found = tile if found is None else v.k.where(at < 0, found, tile)
        first += axis.size
    assert found is not None
    return Padded(found)


def reshape(v: Values, node: Node, place: Place) -> Made:
    """All entries of some dims, counted along others."""
    op, (operand,) = node.op, node.operands
    refusal = v.not_whole(node, place, *(axis.name for axis in op.into))
    if refusal is not None:
        return refusal
    axes = [v.frame.graph[operand].type.axis(name) for name in op.axes]
    x = v.value(operand, {n: i for n, i in v.part(operand, place).items() if n not in op.axes})
    if isinstance(x, Refusal):
        return x
    rest = tuple(dim for dim in x.tile.dims if dim.name not in op.axes)
    tile = v.over(x.wide(), (*rest, *(v.dim(axis.name, axis) for axis in axes))).tile
    before, after = (sympy.Mul(*map(v.length, each)) for each in (axes, op.into))
    at = _counted(v, axes, op.into).over(*rest, Dim(FLAT, after))
    picked = tile.shaped(*rest, Dim(FLAT, before)).pick(at, FLAT)
    made = picked.shaped(*rest, *(v.dim(axis.name, axis) for axis in op.into))
    outer = frozenset(dim.name for dim in rest)
    return Padded(made, x.zero & outer, x.finite & outer)


def _counted(v: Values, old: Sequence[Axis], new: Sequence[Axis]) -> Tile:
    """For each place of the blocks of new dims the place among the blocks of old ones; 0 beyond."""
    left, number, stride = v.k.iota(FLAT, sympy.Mul(*map(v.length, new))), None, sympy.Integer(1)
    inside: Tile | None = None
    for axis in reversed(new):
        length = v.k.lift(v.length(axis), "i32")
        digit = left if axis is new[0] else left % length
        there = digit < _number(v, axis.size)
        inside = there if inside is None else inside & there
        part = digit if stride == 1 else digit * _number(v, stride)
        number = part if number is None else number + part
        stride, left = stride * axis.size, left // length
    assert number is not None and inside is not None
    left, at, room = v.k.where(inside, number, 0), None, sympy.Integer(1)
    for axis in reversed(old):
        size = _number(v, axis.size)
        digit = left if axis is old[0] else left % size
        part = digit if room == 1 else digit * v.k.lift(room, "i32")
        at = part if at is None else at + part
        room, left = room * v.length(axis), left // size
    assert at is not None
    return at


def _read(v: Values, node: Node, id: int, place: Place, axis: str, at: Tile, mask: Tile) -> Made:
    """A value at some places of an axis, anything where a mask is false."""
    own = _others(v, id, place, axis)
    if len(at.dims) == 1:
        found = v.stored(id, {**own, axis: Index(at, mask=mask)})
        if isinstance(found, Padded):
            return found
    return _taken(v, node, id, place, v.k.where(mask, at, 0), axis)


def _taken(v: Values, node: Node, id: int, place: Place, at: Tile, axis: str = "") -> Made:
    """Elements of all of an axis, at places that lie on it."""
    axis = axis or node.op.axis
    x = v.value(id, _others(v, id, place, axis))
    if isinstance(x, Refusal) or axis not in x.labels:
        return x
    new = [dim for dim in at.dims if dim.name not in x.labels or dim.name == axis]
    zero, finite = x.zero - {axis}, x.finite - {axis}
    if not new:
        dims = [dim for dim in x.labels if dim == axis or dim in at.value.type.names]
        here = v.k.apply("eq", v.k.iota(axis, x.tile.dim(axis).length), at, dims_in=dims)
        return Padded(v.k.where(here, x.tile, 0.0).sum(axis), zero, finite)
    if len(new) > 1:
        return v.refused(node, "places that depend on several dims")
    dims = [Dim(axis, new[0].length) if dim.name == axis else dim for dim in x.tile.dims]
    there = at.along(**{new[0].name: axis}).over(*dims)
    return Padded(x.tile.pick(there, axis).along(**{axis: new[0].name}), zero, finite)


def _others(v: Values, id: int, place: Place, axis: str) -> dict[str, Index]:
    """The places of a value along its other axes."""
    return {name: index for name, index in v.part(id, place).items() if name != axis}


def _inside(v: Values, at: Tile, axis: Axis) -> Tile:
    """Whether places lie on an axis."""
    return (at >= 0) & (at < _number(v, axis.size))


def _number(v: Values, size: sympy.Expr) -> Tile:
    """A number of sizes."""
    return v.k.lift(v.size(size), "i32")
