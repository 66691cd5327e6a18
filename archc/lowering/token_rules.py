"""The lowering rules of a token region, beyond those that every kernel has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import sympy

from archc.dims import Axis
from archc.ir import chunk as ck
from archc.ir import layer as ir
from archc.ir.free_names import marked
from archc.ir.graph import Node
from archc.ir.refusal import Refusal
from archc.ir.value_names import primal
from archc.lowering import algebra
from archc.lowering.dropout import staying
from archc.lowering.largest import top
from archc.lowering.token_products import index_by_index
from archc.lowering.token_space import runs_through
from archc.lowering.values import Index, Made, Padded, Place, Rules
from archc.tile.handle import Tile
from archc.tile.language import Dim

if TYPE_CHECKING:
    from archc.lowering.token import TokenProgram

EIGHT = "@eight"
"""The dim of the four random numbers of a counter."""

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
    if node.op.fn == "where" and _is_after_first(v, node.operands[0], place):
        return _late(v, node, place)
    steps = _steps_around(v, node) if node.op.fn == "mod" else None
    return _applied(v, node, place) if steps is None else _around(v, node, place, steps)


def _steps_around(v: TokenProgram, node: Node) -> sympy.Expr | None:
    """The number c of (i + c) mod K, where i counts all K places of a dim and c is in 0 ... K."""
    added, size = (v.graph[operand] for operand in node.operands)
    if added.op != ir.Elementwise("add") or not isinstance(size.op, ir.Constant):
        return None
    for i, c in (added.operands, added.operands[::-1]):
        at, steps = v.graph[i].op, v.graph[c].op
        if not isinstance(at, ir.Position) or not isinstance(steps, ir.Constant):
            continue
        inside = _from_zero(steps.value) and _from_zero(size.op.value - steps.value)
        if inside and at.axis.kind == "dim" and at.axis.size == size.op.value:
            return steps.value
    return None


def _from_zero(size: sympy.Expr) -> bool:
    """Whether a size is known to be 0 or more: what is rounded down is no larger before."""
    floors = size.atoms(sympy.floor)
    made: Any = size
    if all(made.coeff(each).is_negative for each in floors):
        made = made.xreplace({each: each.args[0] for each in floors})
    return bool(made.is_nonnegative)


def _around(v: TokenProgram, node: Node, place: Place, steps: sympy.Expr) -> Made:
    """The same by a choice in place of a division, of which compilers know that neighbours are
    neighbours but where the dim begins anew: they load them together."""
    (axis,) = node.type.axes
    at = place[axis.name].at + v.whole_number(steps)
    size = v.whole_number(axis.size)
    return Padded(v.k.where(at < size, at, at - size))


def _late(v: TokenProgram, node: Node, place: Place) -> Made:
    """The value read where `position >= 0` holds, as it does unless there is a table of
    sequences."""
    x = v.value(node.operands[1], v.part(node.operands[1], place))
    if isinstance(x, Refusal) or v.packed is None:
        return x
    with v.k.branch(v.k.given(v.packed.table)) as there, v.inner():
        made = _applied(v, node, place)
        if isinstance(made, Refusal):
            return made
        there.give(made.tile)
    with v.k.otherwise(there) as missing:
        missing.give(v.over(x.wide(), made.tile.dims).tile)
    return Padded(there.results[0], made.zero & x.zero, made.finite & x.finite)


def _applied(v: TokenProgram, node: Node, place: Place) -> Made:
    """A function of its operands, whatever is known of them."""
    given = v.operands(node, place)
    if isinstance(given, Refusal):
        return given
    given = alike(v, given)
    made = algebra.applied(v, node.op.fn, given, node.type.dtype)
    algebra.explain_numbers(made.tile, v.frame.graph, node)
    if node.op.fn in LARGER and node.type.dtype == "real":
        for x in given:
            if x.number is None:
                wrong = v.k.apply("ne", x.tile, x.tile)
                made = Padded(v.k.where(wrong, x.tile, made.tile), made.zero, made.finite)
    return made


def as_written(v: TokenProgram, name: str, node: Node) -> Node:
    """What an output is where it is written: at tokens, or before the first one if it is of a past,
    one of two values between which `position >= 0` chooses."""
    ends, past = {*v.region.tails, *v.region.nexts}, v.edge(name) is not None
    choice = node.op == ir.Elementwise("where") and _is_from_first(v, node.operands[0])
    if not choice or (primal(name) or name) in ends:
        return node
    chosen = v.graph[node.operands[2 if past else 1]]
    return chosen if chosen.type.axes == node.type.axes else node


def _is_after_first(v: TokenProgram, id: int, place: Place) -> bool:
    """Whether `position >= 0` is known to hold."""
    return _is_from_first(v, id) and v.is_late(place[v.stream])


def _is_from_first(v: TokenProgram, id: int) -> bool:
    """Whether a value is `position >= 0` of the tokens."""
    node = v.graph[id]
    if node.op != ir.Elementwise("ge"):
        return False
    position, least = (v.graph[each].op for each in node.operands)
    known = isinstance(least, ir.Constant) and least.value == 0
    along = isinstance(position, ir.Position) and position.axis.name == v.stream
    return known and along


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
    made = index_by_index(v, node, place)
    if made is not None:
        return made
    names = _summed_dims(v, node, place)
    axes = _axes_of(v, node)
    gone = [axes[label].renamed(name) for label, name in names.items()]
    given = _factors(v, node, place)
    if isinstance(given, Refusal):
        return given
    if v.stream in {axis.name for axis in gone}:
        given = _without_rest(v, given)
    return v.summed(_multiplied(v, given), "sum", gone)


def _factors(v: TokenProgram, node: Node, place: Place) -> list[Padded] | Refusal:
    """The factors of a product at a place of it."""
    places, given = {label: place[axis.name] for label, axis in node.op.out}, []
    axes = _axes_of(v, node)
    for label, name in _summed_dims(v, node, place).items():
        if name != axes[label].name:
            places[label] = v.whole(axes[label], name)
    for operand, labels in zip(node.operands, node.op.ins, strict=True):
        names = v.graph[operand].type.names
        own = {n: places[x] for n, x in zip(names, labels, strict=True) if x in places}
        x = v.value(operand, own)
        if isinstance(x, Refusal):
            return x
        given.append(x)
    return given


def _summed_dims(v: TokenProgram, node: Node, place: Place) -> dict[str, str]:
    """The dims that a product sums over by their labels: each by the name of its axis, if all
    factors call it so and nothing else goes along a dim of that name."""
    kept = {label for label, _ in node.op.out}
    found: dict[str, set[str]] = {}
    for operand, labels in zip(node.operands, node.op.ins, strict=True):
        for label, name in zip(labels, v.graph[operand].type.names, strict=True):
            if label not in kept:
                found.setdefault(label, set()).add(name)
    taken = {*(str(index.label) for index in place.values()), *v.axes}
    free: dict[str, str] = {}
    for label, names in found.items():
        (name, *more) = sorted(names)
        if more or name in free.values() or name in {i.label for i in place.values()}:
            name = marked(name, {*taken, *free.values()})
        free[label] = name
    return free


def _multiplied(v: TokenProgram, given: Sequence[Padded]) -> Padded:
    """The product of tiles."""
    made = given[0]
    for x in given[1:]:
        made = algebra.applied(v, "mul", alike(v, [made, x]))
    return made


def at_tokens(v: TokenProgram, id: int, place: Place) -> Made:
    """A value, 0 where there is no token; of a product along the places of a run one factor is."""
    node, index = v.graph[id], place[v.stream]
    found = v.at(node, place)
    if isinstance(found, Refusal) or not isinstance(node.op, ir.Contract) or index.mask is None:
        return _there(v, v.value(id, place), index)
    given = _factors(v, node, found)
    if isinstance(given, Refusal):
        return given
    along = [x for x in given if v.stream in x.labels]
    least = min(along, key=lambda x: len(x.labels))
    only = Padded(v.k.where(index.mask, least.tile, 0.0), least.zero, least.finite)
    return _multiplied(v, [only if x is least else x for x in given])


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


def noise(v: TokenProgram, node: Node, place: Place) -> Made:
    """The factor of a dropout: 0 or about 1/(1 - p), by a number of the seed and of the element's
    place in memory; without a seed 1."""
    seed = v.memory[v.graph[node.operands[1]].op.name]
    p = node.op.p if node.op.p.is_number else v.option(node.op.p, whole=False)
    with v.k.branch(v.k.given(seed)) as there, v.inner():
        drawn = _drawn(v, node, place, v.k.load(seed))
        least, grown = staying(v.k, p)
        there.give(v.k.where(drawn >= least, grown, 0.0))
    with v.k.otherwise(there) as missing:
        missing.give(v.k.full(1.0, *drawn.dims))
    return Padded(there.results[0], finite=frozenset(dim.name for dim in drawn.dims))


def _drawn(v: TokenProgram, node: Node, place: Place, seed: Tile) -> Tile:
    """The random numbers of a value: of each row of its last dim the eights of its counters."""
    *front, last = node.type.axes
    if last.kind != "dim":
        return v.k.random(seed, _counted(v, node.type.axes, place))
    at = place[last.name].at
    row = _counted(v, front, place) * v.whole_number(sympy.ceiling(last.size / 8)).to("i64")
    if not v.is_own(last.name, place[last.name]) or last.name not in at.value.type.names:
        return _one_of_eight(v, seed, row, at)
    length, first = v.length(last), v.firsts.get(last.name, v.k.lift(0, "i32"))
    with v.k.branch(v.k.at_most(length, 7)) as few, v.inner():
        few.give(_one_of_eight(v, seed, row, at))
    with v.k.otherwise(few) as many, v.inner():
        eighth = v.k.iota(last.name, sympy.floor(length / 8)) + first // 8
        names = tuple(dim.name for dim in few.given[0].dims)
        counter = v.k.apply("add", row, eighth.to("i64"), dims_in=names)
        many.give(v.k.random(seed, counter, v.dim(last.name, last)))
    return few.results[0]


def _one_of_eight(v: TokenProgram, seed: Tile, row: Tile, at: Tile) -> Tile:
    """The random numbers at places that may not follow each other."""
    before = v.k.apply("max", at, 0)
    counter = row + (before // 8).to("i64")
    names = tuple(dim.name for dim in (*row.dims, *at.dims))
    lane, one = Dim(EIGHT, sympy.Integer(8)), Dim(EIGHT, sympy.Integer(1))
    counter = counter.ordered(*names)
    every = v.k.random(seed, counter.over(*counter.dims, one), lane)
    wanted = v.k.apply("eq", before % 8, v.k.iota(EIGHT, 8), dims_in=_within(at, EIGHT))
    return v.k.apply("where", wanted, every, 0, dims_in=(*names, EIGHT)).sum(EIGHT)


def _within(tile: Tile, name: str) -> tuple[str, ...]:
    """The dims of a tile, and a further one."""
    return (*(dim.name for dim in tile.dims), name)


def _counted(v: TokenProgram, axes: Sequence[Axis], place: Place) -> Tile:
    """How many elements of some axes come before each in memory."""
    first, *rest = axes
    found = place[first.name].at.to("i64")
    for axis in rest:
        found = found * v.whole_number(axis.size).to("i64") + place[axis.name].at.to("i64")
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
    if runs_through(v.graph, value):
        return _gathered(v, node, place, x.tile, mask)
    there = Index(x.tile, mask=mask)
    return v.stored(value, {**v.part(value, place), node.op.axis: there})


def join(v: TokenProgram, node: Node, place: Place) -> Made:
    """The operand that a place lies in, as many places earlier as those before it have."""
    at, first, found = place[node.op.into.name], v.k.lift(0, "i32"), None
    for name, operand in zip(node.op.axes, node.operands, strict=True):
        after = first + v.whole_number(v.graph[operand].type.axis(name).size)
        inside = (at.at >= first) & (at.at < after)
        mask = inside if at.mask is None else inside & at.mask
        there = Index(at.at - first, mask=mask)
        x = v.stored(operand, {**v.part(operand, place), name: there})
        if isinstance(x, Refusal):
            return x
        tile = x.wide().tile
        found = tile if found is None else v.k.where(at.at < first, found, tile)
        first = after
    assert found is not None
    return Padded(found)


def _gathered(v: TokenProgram, node: Node, place: Place, at: Tile, mask: Tile) -> Made:
    """The same of what a short convolution is part of, which has its own places alone: elements of
    its tile."""
    value, axis = node.operands[0], node.op.axis
    found = v.value(value, {n: i for n, i in v.part(value, place).items() if n != axis})
    if isinstance(found, Refusal):
        return found
    if axis not in found.labels or not at.dims:
        return v.refused(node, f"one place along {axis} of a short convolution")
    (label,) = (dim.name for dim in at.dims)
    if at.dims[0].length != v.length(v.axes[axis]):
        return v.refused(node, f"another number of places along {axis} of a short convolution")
    dims = [Dim(axis, at.dims[0].length) if d.name == axis else d for d in found.tile.dims]
    there = v.k.where(mask, at, 0).along(**{label: axis}).over(*dims)
    picked = found.tile.pick(there, axis).along(**{axis: label})
    return Padded(v.k.where(mask, picked, 0.0))


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
    """All places of a run, which ends at a token."""
    assert v.walk is not None
    elsewhere = _elsewhere(v, node, place)
    return elsewhere or v.walk.run(v.walk.looks.key(node, v.shifts[place[v.stream]]))


def unwindow(v: TokenProgram, node: Node, place: Place) -> Made:
    """The sum over the runs that hold a token, the last of which begins with it."""
    assert v.walk is not None
    elsewhere = _elsewhere(v, node, place)
    return elsewhere or v.walk.sum(v.walk.looks.key(node, v.shifts[place[v.stream]]))


def _elsewhere(v: TokenProgram, node: Node, place: Place) -> Refusal | None:
    """A refusal of what is not wanted at the program's own places of dims: no other is carried."""
    for axis, index in place.items():
        if axis != v.stream and not v.is_own(axis, index):
            return v.refused(node, f"a short convolution is wanted at other places along {axis}")
    return None


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
    ir.Noise: noise,
    ir.Top: top,
    ir.Elementwise: elementwise,
    ir.Reduce: reduce,
    ir.Contract: contract,
    ir.Gather: gather,
    ir.Join: join,
    ir.Shift: shift,
    ir.Window: window,
    ck.Move: move,
    ck.Unwindow: unwindow,
    ck.Expand: expand,
    ck.Place: place_,
}  # type: ignore[dict-item]
"""One rule an op that a token region, or its gradient, may have."""
