"""Kernels whose tiles would have three dims: one of them goes index by index, in one loop.

    for n in range(N):                        # a[i, D, N] = exp(dt[i, D] A[D, N]), at one n
        a = exp(dt * A[:, n])                 # [rows, block of D]
        h = scan(a, dt * u * b[:, n], start)
        o += h * c[:, n]                      # sums over N
        kept[:, n] = ...                      # what has N, is stored there

What does not depend on the index is made before the loop, sums over the dim are carried by it, and
what is made of these follows after it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from archc.dims import Axis
from archc.ir import chunk as ck
from archc.ir import layer as ir
from archc.ir.graph import Graph, Node
from archc.ir.refusal import Refusal
from archc.lowering.algebra import reduced
from archc.lowering.products import term
from archc.lowering.values import Index, Made, Padded, Place, Values
from archc.tile.handle import Tile

Key = tuple[int, tuple[tuple[str, Index], ...]]
Stored = tuple[str, Node, Place]
Write = Callable[[str, Node, Padded, Place], None]


def key_of(node: Node, place: Place) -> Key:
    """A value at a place."""
    return node.id, tuple(place.items())


@dataclass
class Turned:
    """The sums over the dim that goes index by index: which nodes they are, where each is wanted,
    and once they are known, what they are."""

    axis: Axis
    sums: frozenset[int]
    wanted: dict[Key, tuple[Node, Place]] = field(default_factory=dict)
    found: dict[Key, Padded] | None = None

    def given(self, v: Values, node: Node, place: Place) -> Made | None:
        """A sum: nothing as yet, or what it came to."""
        if node.id not in self.sums:
            return None
        key = key_of(node, place)
        if self.found is not None:
            return self.found[key]
        self.wanted[key] = node, place
        return Padded(v.k.full(0.0, *dims_of(place)))


def sums_over(v: Values, made: list[Node], axis: Axis) -> frozenset[int] | Refusal:
    """The nodes of a kernel that sum over a dim; none may be made of another one."""
    graph = v.frame.graph
    found = frozenset(node.id for node in made if _sums(graph, node, axis))
    for node in made:
        again = node.id in found and {each.id for each in made} & graph.ancestors(node.id) & found
        crosses = isinstance(node.op, ck.ChunkOp) and axis.name in node.op.reduction_dims()
        if again or crosses:
            return v.refused(node, f"a value that goes along {axis.name} in another way")
    return found


def _sums(graph: Graph, node: Node, axis: Axis) -> bool:
    """Whether a node is a sum over a dim."""
    if isinstance(node.op, ir.Reduce):
        return node.op.fn == "sum" and axis.name in node.op.axes
    kept = dict(node.op.out) if isinstance(node.op, ir.Contract) else {}
    if not kept:
        return False
    types = (graph[operand].type.axes for operand in node.operands)
    pairs = (pair for p in zip(node.op.ins, types, strict=True) for pair in zip(*p, strict=True))
    return any(each == axis and label not in kept for label, each in pairs)


def store_in_turn(v: Values, turned: Turned, stored: list[Stored], write: Write) -> Refusal | None:
    """Store values, each at its place, which lacks the dim that goes index by index."""
    axis = turned.axis
    inside = [each for each in stored if axis.name in each[1].type.names]
    outside = [each for each in stored if axis.name not in each[1].type.names]
    with v.inner():
        for _, node, place in outside:
            made = v.value(node.id, place)
            if isinstance(made, Refusal):
                return made
    zero = Index(v.k.lift(0, "i32"))  # what the index does not change, is known from here on
    for made in (*_terms(v, turned, zero), *(_at(v, axis, each, zero) for each in inside)):
        if isinstance(made, Refusal):
            return made
    wanted = [*turned.wanted.values()]
    zeros = [v.k.full(0.0, *dims_of(place)).named(node.name or "total") for node, place in wanted]
    with v.k.loop(0, v.size(axis.size), *zeros, index=axis.name) as turn, v.inner():
        one = Index(turn.index)
        terms = [each for each in _terms(v, turned, one) if isinstance(each, Padded)]
        for name, node, place in inside:
            made = _at(v, axis, (name, node, place), one)
            assert isinstance(made, Padded), "it was made so before"
            write(name, node, made, {**place, axis.name: one})
        turn.next(*map(_added, [v] * len(terms), turn.carried, terms))
    zero_along = (x.zero for x in terms)
    turned.found = {
        key: Padded(tile, known)
        for key, tile, known in zip(turned.wanted, turn.results, zero_along, strict=True)
    }
    for name, node, place in outside:
        made = v.value(node.id, place)
        assert isinstance(made, Padded), "it was made so before"
        write(name, node, made, place)
    return None


def dims_of(place: Place) -> list:
    """The dims of a tile at a place."""
    return [dim for index in place.values() for dim in index.at.dims]


def _at(v: Values, axis: Axis, each: Stored, index: Index) -> Made:
    """A stored value at one index."""
    _, node, place = each
    return v.value(node.id, {**place, axis.name: index})


def _terms(v: Values, turned: Turned, index: Index) -> list[Made]:
    """The addend of each sum at one index."""
    return [_term(v, node, place, turned.axis, index) for node, place in turned.wanted.values()]


def _term(v: Values, node: Node, place: Place, axis: Axis, index: Index) -> Made:
    """The term of one sum at one index, summed over its other axes."""
    if isinstance(node.op, ir.Contract):
        return term(v, node, place, axis, index)
    (operand,) = node.operands
    type = v.frame.graph[operand].type
    rest: Mapping[str, Axis] = {n: type.axis(n) for n in node.op.axes if n != axis.name}
    there = {**place, axis.name: index} | {n: v.whole(each) for n, each in rest.items()}
    x = v.value(operand, there)
    if isinstance(x, Refusal):
        return x
    return reduced(v, x.wide(), tuple(rest), axes=[*rest.values()])


def _added(v: Values, total: Tile, x: Padded) -> Tile:
    """A sum with one more term."""
    return v.k.apply("add", total, x.tile, dims_in=total.value.type.names)
