"""Kernels that go along one dim block by block, in one loop for all that they store.

    d.U, Y                          # rows that no block changes are made before the loop
    for K in blocks:                # S[K, V], k[i, K]: two states, but a block of each at a time
        p = d.U @ S.T
        b += sum[K](k * p)          # sums over K are vectors, and carried
        d.k = ... p ...             # what has K, is stored there
    d.beta = b ...                  # what is made of these sums follows

Products of rows that sum over the dim, as k @ k.T, are made whole, before the loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from archc.dims import Axis
from archc.ir import chunk as ck
from archc.ir import layer as ir
from archc.ir.graph import Graph, Node
from archc.ir.kernel import POINTWISE, Kernel, made_here
from archc.ir.refusal import Refusal
from archc.lowering.turned import Key, Turned, dims_of
from archc.lowering.values import Made, Padded, Place, Values
from archc.tile.compose import ceil_div

if TYPE_CHECKING:
    from archc.lowering.kernel_values import KernelValues

Stored = tuple[str, Node]
PlaceOf = Callable[[Node], "Place | Refusal"]
Write = Callable[[str, Node, Padded, Place], None]


@dataclass(frozen=True)
class Sums:
    """The sums of a kernel over a dim: those that blocks add to, and products of rows."""

    carried: frozenset[int]
    whole: frozenset[int]


def sums_by_blocks(kernel: Kernel, axis: Axis) -> Sums | None:
    """The sums over a dim if all of a kernel can be made in one loop over blocks of it: none is
    made of another, nor is what has the dim, and what is carried is a vector at most."""
    graph, made = kernel.graph, made_here(kernel)
    found = [node for node in made if _sums(graph, node, axis)]
    whole = frozenset(node.id for node in found if _of_rows(kernel, node))
    carried = frozenset(node.id for node in found) - whole
    for node in made:
        after = bool(graph.ancestors(node.id) & carried)
        if node.id in carried and (after or len(_own(kernel, node)) > 1):
            return None
        if after and (axis.name in node.type.names or node.id in whole):
            return None
        if node not in found and _crosses(graph, node, axis):
            return None
    return Sums(carried, whole)


def _own(kernel: Kernel, node: Node) -> list[Axis]:
    """The axes of a value of which a program has more than one index."""
    grid = {axis.name for axis in kernel.grid}
    return [axis for axis in node.type.axes if axis.name not in grid]


def _labelled(graph: Graph, node: Node) -> Iterator[tuple[str, Axis]]:
    """The axes of the operands of a Contract, by its labels."""
    for labels, operand in zip(node.op.ins, node.operands, strict=True):
        yield from zip(labels, graph[operand].type.axes, strict=True)


def _sums(graph: Graph, node: Node, axis: Axis) -> bool:
    """Whether a node is a sum over a dim."""
    if isinstance(node.op, ir.Reduce):
        return node.op.fn == "sum" and axis.name in node.op.axes
    if not isinstance(node.op, ir.Contract):
        return False
    kept = {label for label, _ in node.op.out}
    return any(each == axis and label not in kept for label, each in _labelled(graph, node))


def _of_rows(kernel: Kernel, node: Node) -> bool:
    """Whether a sum is a product of two matrices of rows, both as they are in memory."""
    rows = all(a.kind == "stream" or a.size.has(ck.CHUNK) for a in _own(kernel, node))
    two = rows and len(node.operands) == 2 and len(_own(kernel, node)) == 2
    return two and all(_is_read(kernel, operand) for operand in node.operands)


def _is_read(kernel: Kernel, id: int) -> bool:
    """Whether a value is made element by element of what a kernel reads."""
    node = kernel.graph[id]
    if isinstance(node.op, ir.Input) or (
        id in kernel.loads and id not in kernel.stores.values()
    ):  # fmt: skip
        return True
    renamed = isinstance(node.op, ir.Contract) and len(node.operands) == 1
    plain = isinstance(node.op, POINTWISE) or renamed
    return plain and all(_is_read(kernel, operand) for operand in node.operands)


def _crosses(graph: Graph, node: Node, axis: Axis) -> bool:
    """Whether an op looks along a dim, or gives it another name."""
    names = {a.name for operand in node.operands for a in graph[operand].type.axes}
    if axis.name not in names | {*node.type.names}:
        return False
    if isinstance(node.op, ir.Contract):
        kept = dict(node.op.out)
        pairs = ((each, kept[label]) for label, each in _labelled(graph, node) if label in kept)
        return any(axis in pair and pair[0] != pair[1] for pair in pairs)
    if isinstance(node.op, ck.ChunkOp):
        return axis.name in node.op.reduction_dims()
    if isinstance(node.op, ir.Reduce):
        return axis.name in node.op.axes
    return not isinstance(node.op, ir.Elementwise | ir.Constant | ir.Position)


@dataclass
class Blocked(Turned):
    """The sums that blocks of a dim add to, and the products of rows that are made whole."""

    whole: frozenset[int] = field(default_factory=frozenset)

    def given(self, v: Values, node: Node, place: Place) -> Made | None:
        """A sum, as of index by index; a product of rows over all of the dim."""
        if node.id in self.whole:
            with v.all_at_once(self.axis):
                return v.rules[type(node.op)](v, node, place)
        return super().given(v, node, place)


def store_by_blocks(
    v: KernelValues, blocked: Blocked, stored: Sequence[Stored], place_of: PlaceOf, write: Write
) -> Refusal | None:
    """Store values, in one loop over blocks of a dim."""
    axis, graph = blocked.axis, v.frame.graph
    after = {n.id for n in v.here if n.id in blocked.sums or graph.ancestors(n.id) & blocked.sums}
    inside = [each for each in stored if axis.name in each[1].type.names]
    last = [each for each in stored if each[1].id in after and each not in inside]
    first = [each for each in stored if each not in (*inside, *last)]
    refused = _each(v, first, place_of, write)
    length = v.part_length(axis, turn=True)
    with v.block_of(axis, v.k.lift(0, "i32"), length):  # what blocks share is known from here on
        refused = refused or _each(v, [*last, *inside], place_of) or _refused(_terms(v, blocked))
    if refused:
        return refused
    v.forget(after)
    wanted = [*blocked.wanted.values()]
    zeros = [v.k.full(0.0, *dims_of(place)).named(node.name or "total") for node, place in wanted]
    turns = ceil_div(v.size(axis.size), length)
    with v.k.loop(0, turns, *zeros, ahead=1) as turn, v.inner():  # each loads for itself
        with v.block_of(axis, turn.index * length, length):
            made = dict[Key, Made]()
            for one in inside:  # what is summed is so as soon as it is made
                _terms(v, blocked, made, one[1].id)
                _each(v, [one], place_of, write)
            terms = [each for each in _terms(v, blocked, made) if isinstance(each, Padded)]
        names = (total.value.type.names for total in turn.carried)
        added = zip(turn.carried, terms, names, strict=True)
        turn.next(*(v.k.apply("add", a, x.tile, dims_in=own) for a, x, own in added))
    results = zip(blocked.wanted, turn.results, terms, strict=True)
    blocked.found = {key: Padded(tile, x.zero) for key, tile, x in results}
    return _each(v, last, place_of, write)


def _terms(
    v: KernelValues, blocked: Blocked, made: dict[Key, Made] | None = None, of: int | None = None
) -> list[Made]:
    """What a block adds to each sum: first of what is in memory, which need not be held then. Those
    that are `made` are not made again; with a value, those of the products that it is made of and
    of no others."""
    wanted, made = [*blocked.wanted.items()], {} if made is None else made
    for key, (node, place) in sorted(wanted, key=lambda one: not _from_memory(v, one[1][0])):
        if key in made or (of is not None and not _products(v, node.id) <= _products(v, of)):
            continue
        x = v.rules[type(node.op)](v, node, place)
        made[key] = x.wide() if isinstance(x, Padded) else x
    return [made[key] for key, _ in wanted if key in made]


def _products(v: KernelValues, id: int) -> frozenset[int]:
    """The products of matrices that a value is made of here."""
    graph = v.frame.graph
    here = {n.id for n in v.here if isinstance(n.op, ir.Contract) and len(n.operands) == 2}
    return frozenset(here & graph.ancestors(id))


def _from_memory(v: KernelValues, node: Node) -> bool:
    """Whether a sum is one of values as they are in memory."""
    return all(_is_read(v.kernel, operand) for operand in node.operands)


def _refused(made: Sequence[Made]) -> Refusal | None:
    """The first refusal of some."""
    return next((each for each in made if isinstance(each, Refusal)), None)


def _each(
    v: KernelValues, stored: Sequence[Stored], place_of: PlaceOf, write: Write | None = None
) -> Refusal | None:
    """Make values, and write them."""
    for name, node in stored:
        place = place_of(node)
        made = place if isinstance(place, Refusal) else v.value(node.id, place)
        if isinstance(made, Refusal) or isinstance(place, Refusal):
            return _refused([made])
        if write is not None:
            write(name, node, made, place)
    return None
