"""Kernel IR: which values of a chunked form each kernel computes, reads and writes.

A kernel is a part of a chunk graph that one launch computes. Every program of it has one index of
each axis of `grid`, and computes on tiles: blocks of values along the other axes, held in
registers. A kernel with a `walk` carries the states of a Recurrence from chunk to chunk.

Between kernels values stand in buffers. Nothing is said here of registers, pointers or text: a
backend emits each node from its op.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import sympy

from archc.dims import Axis
from archc.ir import chunk as ck
from archc.ir import layer as ir
from archc.ir.graph import Graph, Node, Type

WIDE, NARROW, SUMMED = "wide", "narrow", "summed"
"""How a buffer keeps real numbers: in float32, as the inputs, or so that differences of sums are
as exact as the inputs: in float32 for inputs of 16 bits, else in float64."""

WHOLE, BLOCK = 128 * 128, 64
"""A product takes a matrix between dims from memory whole if it has so many elements at most, else
in blocks of so many indices of a dim that is summed."""

WHOLE_EXACT = WHOLE // 4
"""The same of a product that is exact, which takes both parts of each number of the matrix."""

MOST_OF_WIDE = 32
"""The longest block of what programs of a walk share, where data are in float32 and the states are
longer than BLOCK, up to 2 BLOCK, along their other dim (`is_short` in a generated file)."""

FEW, NEAR = 4, 64
"""Programs whose tiles have three dims have so many indices of one of them, where another one is no
longer than that."""

POINTWISE = (ir.Elementwise, ir.Constant, ck.Chunks, ck.Tokens, ck.Expand)
"""Ops that may be done at some indices after others: none makes more than the elements there."""


@dataclass(frozen=True)
class Buffer:
    """Memory that kernels pass a value in, laid out as its type says: `by_tokens` rows of chunks
    stand where their tokens do, and those beyond the last one nowhere. `over`: the buffer in whose
    place it stands, where that is as wide."""

    name: str
    type: Type
    width: str = WIDE
    by_tokens: bool = False
    over: str = ""


@dataclass(frozen=True)
class Alone:
    """A walk that a launch may start from 1 along `row`, a dim of its state, and the one that it
    splits, with 0 for what it loads along that one: it makes what becomes of its state alone. Of
    nodes of its body that are 0 then, `products` are not made, in order."""

    row: Axis
    products: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Kernel:
    """One launch. `loads` are nodes that are read from the buffer of that name, `stores` the nodes
    that are written; `ends` are states of the walked Recurrence that are written after its last
    chunk. `split` is an axis of which every program has a block of `most` at most, and so is
    `rows`, an axis of the grid. Of `split` it has FEW indices where the dim `second_split` is not
    longer than NEAR: tiles then have both dims for every row, else one of them goes index by index.
    `turn` is a dim that always does, in one loop for all that is stored; `blocked` is one of which
    such a loop takes BLOCK indices a turn. `exact`: its products
    of matrices are in float32 whatever the data are; those of `in_parts` are too, made of
    products of the two parts of a number. `tokenwise`: it walks the tokens, not chunks of them.
    `optional` are buffers that a launch may leave out: a walk then starts from 0, and what is not
    stored is not made. `told`: which way it walks is for a launch to say. `renamed` are further
    names of `split`, under which values of the same programs have it. `summed` are stored values
    that are sums over `split`: memory has what each block adds, along an axis of blocks that comes
    first. `why` says for a reader how it was cut.
    """

    name: str
    graph: Graph
    loads: Mapping[int, str]
    stores: Mapping[str, int]
    grid: tuple[Axis, ...]
    split: Axis | None = None
    walk: int | None = None
    ends: Mapping[str, str] = field(default_factory=dict)
    why: tuple[str, ...] = ()
    rows: Axis | None = None
    most: int = 64
    exact: bool = False
    in_parts: frozenset[int] = frozenset()
    second_split: Axis | None = None
    turn: Axis | None = None
    blocked: Axis | None = None
    tokenwise: bool = False
    optional: frozenset[str] = frozenset()
    alone: Alone | None = None
    told: bool = False
    renamed: frozenset[str] = frozenset()
    summed: frozenset[str] = frozenset()

    def is_split(self, axis: str) -> bool:
        """Whether a program has a block of an axis of that name alone."""
        return self.split is not None and axis in (self.split.name, *self.renamed)


@dataclass(frozen=True, eq=False)
class Segments:
    """The segments of a sequence that an inter-chunk scan goes through at once, for where there are
    too few programs for whole sequences.

    `ends` walk every segment, one with a state of nothing; what becomes of a state in a segment is
    the product of all decays, which the same walk makes, or a matrix that is `applied` along a dim,
    which another one makes. `join` walks the segments: it gives each the state that it starts from,
    and the states after the last. The walk itself then starts each segment from there. `buffers`
    stand between these; `starts` names, by what the walk loads as a state before the first chunk,
    the buffer that it loads in its place, and `lasts` by a buffer of a state after the last chunk
    what the walk stores there of each segment, which nobody reads. A walk that makes states before
    the first chunk itself cannot start elsewhere: `again` is one that can. Of `rows` each segment
    is given the one of its sequence. `from_zero`: the first of `ends` is the walk itself, from 0
    and without its results; `from_one`: so is the second.
    """

    ends: tuple[Kernel, ...]
    join: Kernel
    buffers: tuple[Buffer, ...]
    starts: Mapping[str, str]
    lasts: Mapping[str, str]
    applied: Axis | None = None
    again: Kernel | None = None
    rows: frozenset[str] = frozenset()
    from_zero: bool = False
    from_one: Alone | None = None


@dataclass(frozen=True, eq=False)
class Kernels:
    """The kernels of a graph in the order of their launches, the buffers between them, and why
    which nodes are in none: PyTorch does those."""

    graph: Graph
    kernels: tuple[Kernel, ...]
    buffers: tuple[Buffer, ...]
    fallback: Mapping[int, str] = field(default_factory=dict)


def loaded_by_walk(kernel: Kernel, id: int) -> tuple[int, list[Axis]] | None:
    """How many matrices of a value the walk of a kernel loads at each chunk, one for each capture
    of it, and the axes of one but for the grid: rows, their steps, a dim. None if it loads none."""
    node, grid = kernel.graph[id], {axis.name for axis in kernel.grid}
    walk = None if kernel.walk is None else kernel.graph[kernel.walk]
    streams = [axis for axis in node.type.axes if axis.kind == "stream"]
    if walk is None or not streams or id in kernel.stores.values():
        return None
    steps = {n.op.steps for n in kernel.graph if isinstance(n.op, ck.Chunks)}
    rows = [axis for axis in streams if not axis.size.has(ck.CHUNK)]
    dims = [a for a in node.type.axes if a.kind == "dim" and a.name not in grid]
    if len(rows) + sum(axis.name not in steps for axis in dims) != 2:
        return None
    count = sum(_entering(kernel.graph, each) == id for each in walk.operands)
    return max(1, count), [*rows, *dims]


def _entering(graph: Graph, id: int) -> int:
    """The value behind reshapes into chunks and renamed dims."""
    node = graph[id]
    while isinstance(node.op, ck.Chunks) or (
        isinstance(node.op, ir.Contract) and len(node.operands) == 1
    ):
        node = graph[node.operands[0]]
    return node.id


def dim_of_states(kernel: Kernel) -> sympy.Expr | None:
    """The length of the dim of a walk's states of which a program has all, where it is one."""
    if kernel.walk is None:
        return None
    walked = kernel.graph[kernel.walk].op
    assert isinstance(walked, ir.Recurrence)
    own = {axis.name for axis in kernel.grid}
    axes = [axis for state in walked.states for axis in state.axes if axis.name not in own]
    sizes = {axis.size for axis in axes if not kernel.is_split(axis.name)}
    return sizes.pop() if len(sizes) == 1 else None


def shrinking(kernel: Kernel) -> sympy.Expr | None:
    """The size of the dim that makes a walk's blocks shorter in float32 (`MOST_OF_WIDE`)."""
    plain = not (kernel.exact or kernel.told or kernel.tokenwise) and kernel.most == BLOCK
    return dim_of_states(kernel) if plain else None


def warps(kernel: Kernel, read: Iterable[Type], parts: bool) -> int:
    """How many warps a program has that reads values of these types: more where it has much to
    hold. That is a walk back the state and its gradient, or a matrix in float32 or in `parts`, and
    so what reads two states; and products around a quotient, where rows are in float32."""
    if _solves(kernel):
        return 4  # as many as have 16 of 64 rows each: products then leave rows where they are
    if kernel.turn is not None:  # each thread has all rows of an index of what is split
        return 1
    if kernel.walk is not None:
        return 8 if kernel.exact or kernel.graph[kernel.walk].op.reverse else 4
    grid = {axis.name for axis in kernel.grid}
    dims = [[a for a in type.axes if a.kind == "dim" and a.name not in grid] for type in read]
    states = [axes for axes in dims if sum(not axis.size.has(ck.CHUNK) for axis in axes) > 1]
    divided = bool(kernel.in_parts) and _multiplies(kernel)
    large = len(states) > 1 and kernel.blocked is None
    return 8 if large or parts or divided else 4


def dims_of_half(kernel: Kernel, read: Iterable[Type]) -> tuple[sympy.Expr, ...]:
    """The sizes that let half of 8 warps do in 16 bits, where none is above BLOCK: those of dims
    that are whole in a program that reads values of these types. None are such where tiles have
    three dims, or a chunk more rows than tokens."""
    grid = {axis.name for axis in kernel.grid}
    known = [[a for a in type.axes if a.kind == "dim" and a.name not in grid] for type in read]
    lengths = {a.size for n in made_here(kernel) for a in n.type.axes if a.kind == "dim"}
    rows = {n for n in lengths if n.has(ck.CHUNK)}
    if any(len(axes) > 2 for axes in known) or rows != {ck.CHUNK}:
        return ()
    split = "" if kernel.split is None else kernel.split.name
    sizes = (a.size for axes in known for a in axes if a.name != split)
    return tuple(dict.fromkeys(size for size in sizes if size != ck.CHUNK))


def made_here(kernel: Kernel) -> list[Node]:
    """The nodes that a kernel computes from what it loads, operands first."""
    graph, seen, own = kernel.graph, set[int](), {*kernel.stores.values()}
    stack = [*own, *(() if kernel.walk is None else graph[kernel.walk].operands)]
    while stack:
        id = stack.pop()
        if id not in seen and (id in own or id not in kernel.loads):
            seen.add(id)
            stack += graph[id].operands
    return [node for node in graph if node.id in seen]


def _solves(kernel: Kernel) -> bool:
    """Whether a kernel makes a system's solution turn by turn."""
    return any(isinstance(node.op, ck.Conjugate) for node in made_here(kernel))


def _multiplies(kernel: Kernel) -> bool:
    """Whether a kernel makes a product of two matrices, whose axes are dims and rows."""
    grid = {axis.name for axis in kernel.grid}
    for node in made_here(kernel):
        if isinstance(node.op, ir.Contract) and len(node.operands) == 2:
            types = (node.type, *(kernel.graph[o].type for o in node.operands))
            own = [[a for a in t.axes if a.kind == "dim" and a.name not in grid] for t in types]
            if all(len(axes) == 2 for axes in own):
                return True
    return False
