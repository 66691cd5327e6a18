"""The lowering rules of a token region, beyond those that every kernel has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import sympy

from archc.dims import Axis
from archc.ir import chunk as ck
from archc.ir import layer as ir
from archc.ir.graph import Node
from archc.lowering import algebra
from archc.lowering.values import Index, Made, Padded, Place, Refusal, Rules
from archc.tile.handle import Tile

if TYPE_CHECKING:
    from archc.lowering.token import TokenProgram

LARGER = ("max", "min", "relu")
"""Functions that may drop a NaN on a GPU."""


def constant(v: TokenProgram, node: Node, place: Place) -> Made:
    """A number, or an argument of the launch that is one."""
    value = node.op.value
    if value.is_number:
        return algebra.constant(v, node, place)
    return Padded(v.k.lift(v.option(value, node.type.dtype == "int")))


def position(v: TokenProgram, node: Node, place: Place) -> Made:
    """A place along an axis: of a token, in its own sequence."""
    return Padded(v.position(place[node.op.axis.name], node.op.axis))


def elementwise(v: TokenProgram, node: Node, place: Place) -> Made:
    """A function of its operands; a NaN is never dropped by a choice."""
    given = v.operands(node, place)
    if isinstance(given, Refusal):
        return given
    given = alike(v, given)
    made = algebra.applied(v, node.op.fn, given, node.type.dtype)
    if node.op.fn in LARGER and node.type.dtype == "real":
        for x in given:
            if x.number is None:
                wrong = v.k.apply("ne", x.tile, x.tile)
                made = Padded(v.k.where(wrong, x.tile, made.tile), made.zero, made.finite)
    return made


def alike(v: TokenProgram, given: Sequence[Padded]) -> list[Padded]:
    """Operands, each along the places of a short convolution if another one is."""
    dims = {dim.name: dim for x in given for dim in x.tile.dims if dim.name in v.taps_of}
    return [v.beside(x, [*dims.values()]) for x in given]


def reduce(v: TokenProgram, node: Node, place: Place) -> Made:
    """All places of the axes, reduced; NaN where there is one."""
    fn = node.op.fn
    axes = [v.graph[node.operands[0]].type.axis(name) for name in node.op.axes]
    own = {name: index for name, index in place.items() if name not in node.op.axes}
    x = v.value(node.operands[0], own)
    if isinstance(x, Refusal):
        return x
    made = v.summed(x, fn, axes)
    if fn in ("max", "min"):
        wrong = Padded(v.k.where(v.k.apply("ne", x.tile, x.tile), 1.0, 0.0))
        some = v.summed(wrong, "max", axes)
        return Padded(v.k.where(some.tile > 0.0, float("nan"), made.tile))
    if fn == "mean":
        count = sympy.Mul(*(axis.size for axis in axes))
        return Padded(made.tile / v.k.lift(v.size(count)).to("f32"), made.zero, made.finite)
    return made


def contract(v: TokenProgram, node: Node, place: Place) -> Made:
    """A product, summed over the labels that go; those of a short convolution in each thread."""
    axes = _axes_of(v, node)
    places = {label: place[axis.name] for label, axis in node.op.out}
    gone = {label: axis for label, axis in axes.items() if label not in places}
    given = []
    for operand, labels in zip(node.operands, node.op.ins, strict=True):
        names = v.graph[operand].type.names
        own = {n: places[x] for n, x in zip(names, labels, strict=True) if x in places}
        x = v.value(operand, own)
        if isinstance(x, Refusal):
            return x
        given.append(x)
    if v.stream in {axis.name for axis in gone.values()}:
        given = _without_rest(v, given)
    made = given[0]
    for x in given[1:]:
        made = algebra.applied(v, "mul", alike(v, [made, x]))
    return v.summed(made, "sum", [*gone.values()])


def _without_rest(v: TokenProgram, given: list[Padded]) -> list[Padded]:
    """Factors, of which the smallest is 0 where there are no tokens: less to choose than in their
    product. It is as long as the others are finite there."""
    along = [x for x in given if v.stream in x.labels]
    if not along:
        return given
    least = min(along, key=lambda x: len(x.labels))
    if any(x is not least and v.stream not in x.finite for x in along):
        return given
    return [v.masked(x, (v.stream,)) if x is least else x for x in given]


def _axes_of(v: TokenProgram, node: Node) -> dict[str, Axis]:
    """The axis of each label."""
    found: dict[str, Axis] = {}
    for operand, labels in zip(node.operands, node.op.ins, strict=True):
        for label, axis in zip(labels, v.graph[operand].type.axes, strict=True):
            found.setdefault(label, axis)
    return found


def gather(v: TokenProgram, node: Node, place: Place) -> Made:
    """The operand at other places of an axis."""
    value, index = node.operands
    x = v.value(index, v.part(index, place))
    if isinstance(x, Refusal):
        return x
    if len(x.labels) > 1:
        return v.refused(node, "it is read at places that depend on several dims")
    axis = v.graph[value].type.axis(node.op.axis)
    mask = (x.tile >= 0) & (x.tile < v.whole_number(axis.size))
    for other in v.part(index, place).values():
        mask = mask if other.mask is None else mask & other.mask
    there = Index(x.tile, mask=mask)
    return v.stored(value, {**v.part(value, place), node.op.axis: there})


def shift(v: TokenProgram, node: Node, place: Place) -> Made:
    """The operand some tokens earlier; it knows what was before the first one."""
    stream = node.op.stream
    earlier = v.moved(place[stream], -node.op.steps)
    return v.stored(node.operands[0], {**place, stream: earlier})


def move(v: TokenProgram, node: Node, place: Place) -> Made:
    """The same of a gradient, which is 0 where there is no token."""
    axis = node.op.axis
    if axis != v.stream:
        return v.refused(node, f"it moves along {axis}")
    moved = v.moved(place[axis], -node.op.steps)
    return _there(v, v.value(node.operands[0], {**place, axis: moved}), moved)


def _there(v: TokenProgram, x: Made, index: Index) -> Made:
    """A value at tokens, 0 where there is none."""
    if isinstance(x, Refusal) or index.mask is None:
        return x
    return Padded(v.k.where(index.mask, x.tile, 0.0), x.zero - {v.stream}, x.finite)


def window(v: TokenProgram, node: Node, place: Place) -> Made:
    """A place of a run: a token so many before the last of it; or all places of it."""
    op = node.op
    last = v.whole_number(1 - op.width.size)
    own = {name: index for name, index in place.items() if name != op.width.name}

    def token(tap: Index) -> Made:
        there = v.moved(place[op.stream], tap.at + last)
        return v.stored(node.operands[0], {**own, op.stream: there})

    tap = place[op.width.name]
    if tap.label is None:
        return token(tap)
    with v.only_at(place[op.stream]):
        return v.held(op.width, v.dims_of(place), token)


def unwindow(v: TokenProgram, node: Node, place: Place) -> Made:
    """The sum over the runs that hold a token: that of the token itself, and the next ones."""
    op, stream = node.op, node.op.stream.name
    (width,) = (axis for axis in v.space.unrolled if axis.name == op.width)
    last = v.whole_number(width.size - 1)
    factors = _factors(v, v.graph[node.operands[0]], width)
    if factors is not None:
        return _of_factors(v, place, width, last, *factors)

    def term(tap: Index) -> Made:
        token = v.moved(place[stream], last - tap.at)
        run = {**place, stream: token, op.width: tap}
        return _there(v, v.value(node.operands[0], run), token)

    return v.taps(width, v.dims_of(place), term)


Factor = tuple[int, Mapping[str, str]]
"""A factor of a product, with the axis of the product that each of its own is."""


def _factors(v: TokenProgram, node: Node, width: Axis) -> tuple[Factor, Factor] | None:
    """Of a product of what is read along the tokens and of taps, both from memory, the two."""
    if not isinstance(node.op, ir.Contract) or len(node.operands) != 2:
        return None
    names = {label: axis.name for label, axis in node.op.out}
    if not all(label in names for labels in node.op.ins for label in labels):
        return None
    found = []
    for id, labels in zip(node.operands, node.op.ins, strict=True):
        pairs = zip(v.graph[id].type.names, labels, strict=True)
        found.append((id, {name: names[label] for name, label in pairs}))
    found.sort(key=lambda factor: v.stream not in factor[1])
    (along, own), (taps, others) = found
    plain = all(isinstance(v.graph[id].op, ir.Input) for id in (along, taps))
    apart = width.name not in own.values() and v.stream not in others.values()
    return (found[0], found[1]) if plain and apart and v.stream in own else None


def _of_factors(
    v: TokenProgram, place: Place, width: Axis, last: Tile, along: Factor, taps: Factor
) -> Made:
    """The same, with the tokens of a run as a tile that each thread has all places of; a load at
    no token is 0."""

    def token(tap: Index) -> Made:
        there = v.moved(place[v.stream], last - tap.at)
        return v.stored(along[0], _of(along, {**place, v.stream: there}))

    run = {**place, width.name: v.whole(width)}
    held = v.held(width, v.dims_of(run), token)
    weights = v.value(taps[0], _of(taps, run))
    if isinstance(held, Refusal) or isinstance(weights, Refusal):
        return held if isinstance(held, Refusal) else weights
    made = algebra.applied(v, "mul", alike(v, [held, weights]))
    return v.summed(made, "sum", [width])


def _of(factor: Factor, place: Place) -> Place:
    """The indices of a factor's own axes."""
    return {own: place[name] for own, name in factor[1].items() if name in place}


def expand(v: TokenProgram, node: Node, place: Place) -> Made:
    """The same value: whoever reads it broadcasts it."""
    return v.stored(node.operands[0], v.part(node.operands[0], place))


def place_(v: TokenProgram, node: Node, place: Place) -> Made:
    """The operand at one place of an axis, else 0."""
    axis = node.op.axis
    x = v.value(node.operands[0], v.part(node.operands[0], place))
    if isinstance(x, Refusal):
        return x
    here = place[axis.name].at.equals(algebra.counted(v, axis, node.op.index))
    return Padded(v.k.where(here, x.tile, 0.0))


TOKEN_RULES: Rules = {
    ir.Constant: constant,
    ir.Position: position,
    ir.Delta: algebra.delta,
    ir.Elementwise: elementwise,
    ir.Reduce: reduce,
    ir.Contract: contract,
    ir.Gather: gather,
    ir.Shift: shift,
    ir.Window: window,
    ck.Move: move,
    ck.Unwindow: unwindow,
    ck.Expand: expand,
    ck.Place: place_,
}  # type: ignore[dict-item]
"""One rule an op that a token region, or its gradient, may have."""
