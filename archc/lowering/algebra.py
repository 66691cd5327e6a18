"""Numbers, elementwise functions, reductions and single places as tiles."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import sympy

from archc.dims import Axis, in_words
from archc.functions.definitions import FUNCTIONS
from archc.ir import chunk as ck
from archc.ir import layer as ir
from archc.ir.graph import Graph, Node
from archc.ir.refusal import Refusal
from archc.lowering.values import Index, Made, Padded, Place, Values
from archc.tile.handle import Tile
from archc.tile.language import kind
from archc.tile.typed import OF_SINGLES

REDUCING = {
    "sum": ("sum", 0.0),
    "mean": ("sum", 0.0),
    "max": ("max", -math.inf),
    "min": ("min", math.inf),
    "prod": ("product", 1.0),
}
"""Functions that take an axis away, and what changes nothing for them."""

KEEPING = frozenset(("add", "sub", "neg", "max", "min"))
"""Functions of exact sums that are as exact as these."""

# --- numbers ------------------------------------------------------------------------------------


def constant(v: Values, node: Node, place: Place) -> Made:
    """A number, or an expression in sizes."""
    value = node.op.value
    if not value.is_number and not value.is_infinite:
        return Padded(v.k.lift(v.size(value)).to("f32" if node.type.dtype == "real" else "i32"))
    number = float(value)
    whole = node.type.dtype == "int" and value.is_Integer
    return Padded(v.k.lift(int(value), "i32") if whole else v.k.lift(number), number=number)


def position(v: Values, node: Node, place: Place) -> Made:
    """The index itself, counted from where its axis begins."""
    axis = node.op.axis
    at, (first, _) = place[axis.name].at, v.borders(axis)
    return Padded(at if axis.kind == "dim" else at - first)


def delta(v: Values, node: Node, place: Place) -> Made:
    """1 where two indices are equal."""
    row, col = (place[axis.name].at for axis in (node.op.row, node.op.col))
    v.see(*(dim.name for at in (row, col) for dim in at.dims))
    return Padded(v.k.where(row.equals(col), 1.0, 0.0))


# --- element by element -------------------------------------------------------------------------


def elementwise(v: Values, node: Node, place: Place) -> Made:
    """A function of its operands, each as wide as it wants them."""
    given = v.operands(node, place)
    if isinstance(given, Refusal):
        return given
    made = applied(v, node.op.fn, given, node.type.dtype)
    explain_numbers(made.tile, v.frame.graph, node)
    return made


def explain_numbers(made: Tile, graph: Graph, node: Node) -> None:
    """Put a word on the numbers that a function is given."""
    for op in (graph[operand].op for operand in node.operands):
        if isinstance(op, ir.Constant) and (word := _word_on(op.value)):
            made.composer.noted(made, word)


def _word_on(value: sympy.Expr) -> str:
    """A word on a number whose digits do not say what it is."""
    if value == ck.LARGEST_SCALE:
        return "a scale 1 / 0 is 2 ** 127: finite, as what it scales is 0"
    plain = not value.is_number or value.is_Rational or value.is_infinite
    return "" if plain else f"{in_words(value)} is {float(value):.5g}"


def applied(v: Values, fn: str, given: Sequence[Padded], dtype: str = "real") -> Padded:
    """An elementwise function of tiles, and what is known of its padding."""
    labels = v.joined(*given)
    zero, finite = off_axis(fn, given)
    if fn == "real" and given[0].number is not None:
        return Padded(v.k.lift(given[0].number), number=given[0].number)
    tiles = _as_wanted(v, fn, given, dtype)
    if dtype == "int" and fn in ("mod", "floordiv"):
        made = _divided(v, fn, tiles[0], tiles[1], labels)
    else:
        made = v.k.apply(fn, *tiles, dims_in=labels)
    found = [x for x in given if x.product and len(x.labels) == len(labels)]
    turned = [(x.labels != labels) != x.turned for x in found]
    return Padded(made, zero, finite, bool(found), bool(found) and all(turned))


def _as_wanted(v: Values, fn: str, given: Sequence[Padded], dtype: str) -> list[Tile]:
    """Operands in the dtypes that a function takes: of a real one in float32, unless all are exact
    sums and stay so."""
    tiles = [x.tile for x in given]
    exact = {x.tile.dtype for x in given if x.narrow}
    others = [x for x in given if not x.narrow and x.number is None]
    if exact and fn in KEEPING and len(exact) == 1 and not others and fn not in OF_SINGLES:
        (one,) = exact
        return [t if x.number is None else t.to(one) for t, x in zip(tiles, given, strict=True)]
    tiles = [tile.to("f32") if x.narrow else tile for tile, x in zip(tiles, given, strict=True)]
    if dtype != "real":
        return tiles
    return [_real(v, tile, x) for tile, x in zip(tiles, given, strict=True)]


def _real(v: Values, tile: Tile, x: Padded) -> Tile:
    """A real number for an integer; one that is known is written as one, as powers look at it."""
    if kind(tile.dtype) != "int":
        return tile
    return tile.to("f32") if x.number is None else v.k.lift(float(x.number))


def _divided(v: Values, fn: str, x: Tile, y: Tile, labels: Sequence[str]) -> Tile:
    """The quotient of integers rounded down, or what is left: by their sizes, as the language
    divides what is not negative."""
    size_x, size_y = v.k.apply("abs", x), v.k.apply("abs", y)
    whole = v.k.apply("floordiv", size_x, size_y, dims_in=labels)
    rest = v.k.apply("mod", size_x, size_y, dims_in=labels)
    apart = v.k.apply("ne", x < 0, y < 0)
    down = v.k.where(rest > 0, -1 - whole, -whole)
    found = v.k.where(apart, down, whole)
    return found if fn == "floordiv" else x - y * found


def off_axis(fn: str, given: Sequence[Padded]) -> tuple[frozenset[str], frozenset[str]]:
    """Dims along which the result is 0 off the axis, and those along which it is finite."""
    labels = frozenset(label for x in given for label in x.labels)
    zero = frozenset(c for c in labels if all(c in x.zero for x in given if c in x.labels))
    finite = frozenset(c for c in labels if all(c in x.finite for x in given if c in x.labels))
    if any(x.number is not None and math.isinf(x.number) for x in given):
        return frozenset(), frozenset()
    if fn == "mul":
        return finite & frozenset(c for x in given for c in x.zero), finite
    if fn == "div" and given[1].number is not None:
        return given[0].zero, finite
    if FUNCTIONS[fn].unbounded:
        return frozenset(), zero if fn == "exp" else frozenset()
    if fn == "where":
        return given[1].zero & given[2].zero, finite
    if FUNCTIONS[fn].zero_at_zero:
        return frozenset.intersection(*(x.zero for x in given)), finite
    return frozenset(), finite


# --- along an axis ------------------------------------------------------------------------------


def reduce(v: Values, node: Node, place: Place) -> Made:
    """A sum, a mean, a maximum ... of what lies on the axes."""
    turn = v.summed_in_turn(node, place)
    if turn is not None:
        return _summed_in_turn(v, node, place, turn)
    operand = v.frame.graph[node.operands[0]].type
    own = dict(place)
    for name in node.op.axes:
        given = v.indices.get(name)
        if given is not None and given.label is None:
            return v.refused(node, f"sum over {name}, of which a program has one index")
        own[name] = v.whole(operand.axis(name))
    x = v.value(node.operands[0], own)
    if isinstance(x, Refusal):
        return x
    x = reduced(v, x.wide(), node.op.axes, node.op.fn, [operand.axis(n) for n in node.op.axes])
    if node.op.fn == "mean":
        size = sympy.Mul(*(operand.axis(axis).size for axis in node.op.axes))
        x = replace(x, tile=x.tile / v.k.lift(v.size(size)).to("f32"))
    return x


def _summed_in_turn(v: Values, node: Node, place: Place, axis: Axis) -> Made:
    """A sum, of which a loop adds one index of a dim after the other."""
    operand = v.frame.graph[node.operands[0]].type
    dims = {dim.name: dim for index in place.values() for dim in index.at.dims}
    rest = [name for name in node.op.axes if name != axis.name]
    zeros = v.k.full(0.0, *dims.values()).named("total")
    with v.k.loop(0, v.size(axis.size), zeros, index=axis.name) as turn, v.inner():
        there = {**place, axis.name: Index(turn.index)}
        there |= {name: v.whole(operand.axis(name)) for name in rest}
        x = v.value(node.operands[0], there)
        if isinstance(x, Refusal):
            turn.next(*turn.carried)
            return x
        x = reduced(v, x.wide(), rest, axes=[operand.axis(name) for name in rest])
        turn.next(v.k.apply("add", turn.carried[0], x.tile, dims_in=(*dims,)))
    return Padded(turn.results[0])


def reduced(
    v: Values, x: Padded, labels: Sequence[str], fn: str = "sum", axes: Sequence[Axis] = ()
) -> Padded:
    """A tile without some dims: what it lacks of `axes` counts as often as these are long."""
    function, fill = REDUCING[fn]
    missing = [v.dim(axis.name, axis) for axis in axes if axis.name not in x.labels]
    if missing and function in ("sum", "product"):
        x = v.over(x, (*missing, *x.tile.dims))
    for label in labels:
        if label in x.labels:
            x = v.masked(x, (label,), fill)
            tile = x.tile.reduce(function, label)
            x = Padded(tile, x.zero - {label}, x.finite - {label})
    return x


# --- single places ------------------------------------------------------------------------------


def same(v: Values, node: Node, place: Place) -> Made:
    """Its operand, at the operand's own axes."""
    return v.stored(node.operands[0], v.part(node.operands[0], place))


def select(v: Values, node: Node, place: Place) -> Made:
    """The value there, or what is left of all of the axis where it is wanted whole."""
    operand, op = node.operands[0], node.op
    axis = v.frame.graph[operand].type.axis(op.axis)
    own = v.part(operand, place)
    one = v.stored(operand, {**own, op.axis: Index(counted(v, axis, op.index))})
    if not isinstance(one, Refusal) or not one.moved:
        return one
    x = v.value(operand, {name: i for name, i in own.items() if name != op.axis})
    if isinstance(x, Refusal) or op.axis not in x.labels:
        return x
    chosen = v.whole(axis).at.equals(counted(v, axis, op.index))
    picked = Padded(v.k.where(chosen, x.tile, 0.0), x.zero | {op.axis})
    return reduced(v, picked, (op.axis,))


def counted(v: Values, axis: Axis, index: int) -> Tile:
    """An index that is counted from the end if it is negative."""
    return v.k.lift(v.size(sympy.Integer(index) if index >= 0 else axis.size + index), "i32")


def place_(v: Values, node: Node, place: Place) -> Made:
    """A value at one index of a new axis, and 0 elsewhere."""
    axis, operand = node.op.axis, node.operands[0]
    chosen = place[axis.name].at.equals(counted(v, axis, node.op.index))
    at = {n: i for n, i in place.items() if n != axis.name}
    masks = {n: i.mask for n, i in at.items() if i.mask is not None}
    along = [n for n, mask in masks.items() if mask.dims == chosen.dims]
    if along and v.is_loaded(operand):  # no more is loaded
        name = along[0]
        return v.stored(operand, {**at, name: replace(at[name], mask=masks[name] & chosen)})
    x = v.value(operand, at)
    return x if isinstance(x, Refusal) else kept(v, x, chosen)


def kept(v: Values, x: Padded, chosen: Tile, fill: float = 0.0) -> Padded:
    """A value where a condition holds, and `fill` elsewhere."""
    labels = frozenset(chosen.value.type.names)
    condition, nothing = Padded(chosen, finite=labels), Padded(v.like(fill, x.tile), number=fill)
    dims = v.joined(condition, x)
    tile = v.k.apply("where", chosen, x.tile, nothing.tile, dims_in=dims)
    product = x.product and len(x.labels) == len(dims)
    turned = product and (x.labels != dims) != x.turned
    zero = x.zero if fill == 0.0 else frozenset()
    return Padded(tile, zero, x.finite | (labels - {*x.labels}), product, turned, None, x.stored)


def masked_at(v: Values, x: Padded, inside: Tile, fill: float = 0.0) -> Padded:
    """A tile with `fill` at places that are not inside, where it is finite then."""
    found = kept(v, x, inside, fill)
    return replace(found, finite=found.finite | {*inside.value.type.names})


def gather(v: Values, node: Node, place: Place) -> Made:
    """The value at an index that is a number."""
    index = v.frame.graph[node.operands[1]].op
    number = getattr(index, "value", None)
    if number is None or not number.is_Integer:
        return v.refused(node, "values from places that are found out")
    own = v.part(node.operands[0], place)
    at = Index(v.k.lift(int(number), "i32"))
    return v.stored(node.operands[0], {**own, node.op.axis: at})
