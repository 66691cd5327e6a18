"""The work of one program of a kernel: its values in the order in which they are made, and the
lengths of its tiles."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import sympy

from archc.dims import Axis, free_symbols
from archc.ir import chunk as ck
from archc.ir import layer as ir
from archc.ir.graph import Graph, Node, Type
from archc.ir.kernel import (
    BLOCK,
    FEW,
    MOST_OF_WIDE,
    NARROW,
    NEAR,
    SUMMED,
    Kernel,
    Kernels,
    shrinking,
)
from archc.ir.sizes import Number, evaluate
from archc.ir.value_names import is_saved

Sizes = Mapping[str, Number]
"""Every size by the name of its symbol: those of the layer, `batch`, `T` and `chunk`."""

WIDE = 4
"""Bytes of a number that is kept exactly."""


@dataclass(frozen=True)
class Setting:
    """Sizes, the dtype of the data, and the bytes of a number of each tensor by its name."""

    sizes: Sizes
    dtype: str = "bfloat16"
    widths: Mapping[str, int] = field(default_factory=dict)

    @property
    def data(self) -> int:
        """Bytes of a number of the data."""
        return WIDE if self.dtype == "float32" else 2

    def width(self, name: str) -> int:
        """Bytes of a number of a tensor."""
        return self.widths.get(name, WIDE)


NOWHERE = Setting({})
"""For what does not depend on sizes."""


def widths(kernels: Kernels, dtype: str) -> dict[str, int]:
    """Bytes of a number of every tensor that kernels read or write: what runs along the tokens and
    what is narrow is as the data, sums of gates are more exact than it, and the rest is float32."""
    data, graph = Setting({}, dtype).data, kernels.graph
    types = {node.op.name: node.type for node in graph if isinstance(node.op, ir.Input)}
    types |= {name: graph[id].type for name, id in graph.outputs.items()}
    outside = {name for name in types if not is_saved(name)}
    inner = {NARROW: data, SUMMED: WIDE if data < WIDE else 2 * WIDE}
    kept = {buffer.name: inner.get(buffer.width, WIDE) for buffer in kernels.buffers}
    types |= {buffer.name: buffer.type for buffer in kernels.buffers}
    found = {}
    for name, type in types.items():
        real = (data if _along_tokens(type) else WIDE) if name in outside else kept.get(name, WIDE)
        found[name] = {"int": 4, "bool": 1}.get(type.dtype, real)
    return found


def _along_tokens(type: Type) -> bool:
    return any(a.kind == "stream" and not a.size.has(ck.CHUNK) for a in type.axes)


Key = tuple[str, int | str]
"""A value of a program: in the kernel's graph, in the body of its walk, or a state."""

OUTER, BODY, STATE = "graph", "body", "state"


@dataclass(frozen=True)
class Step:
    """A value that a program makes or loads: its node, the graph that it is in, and what it is made
    of. `load` is the buffer that it is read from; `each`: it is done at each chunk of a walk."""

    key: Key
    node: Node
    graph: Graph
    operands: tuple[Key, ...] = ()
    load: str | None = None
    each: bool = False


def _steps_of(graph: Graph, node: Node) -> tuple[str, sympy.Expr] | None:
    """The axis of the steps of a token that a node takes as rows of a chunk, and their number."""
    op = node.op
    if isinstance(op, ck.Chunks) and op.steps is not None:
        return op.steps, op.row.size / ck.CHUNK
    if isinstance(op, ck.Tokens) and op.steps is not None:
        return op.steps.name, graph[node.operands[0]].type.axis(op.row).size / ck.CHUNK
    return None


@dataclass(eq=False)
class Program:
    """The steps of one program, and the lengths of its tiles at some sizes."""

    kernel: Kernel
    setting: Setting = NOWHERE
    steps: dict[Key, Step] = field(default_factory=dict)
    states: dict[str, Type] = field(default_factory=dict)
    known: dict[object, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        kernel, graph = self.kernel, self.kernel.graph
        self.own = set(kernel.stores.values())
        self.recurrence: Node | None = None if kernel.walk is None else graph[kernel.walk]
        self.inner = dict(found for node in graph if (found := _steps_of(graph, node)) is not None)
        self.picked: set[str] = set()
        self.blocks = {n.type.axes[-1].name for n in graph if isinstance(n.op, ck.BlockSums)}
        self._known_tiled: dict[Axis, bool] = {}
        self._known_lengths: dict[Axis, int] = {}
        self._known_tiles: dict[tuple[Axis, ...], list[int]] = {}
        self.looping = False
        if self.recurrence is not None:
            op: ir.Recurrence = self.recurrence.op
            self.states = {s.before: Type(s.axes) for s in op.states}
            for id in self.recurrence.operands[len(op.captures) :]:
                self._visit(OUTER, id)
            self.looping = True
            for id in op.body.outputs.values():
                self._visit(BODY, id)
        for id in kernel.stores.values():
            self._visit(OUTER, id)
        self.picked = self._picked()
        self._known_tiled.clear()
        self._known_tiles.clear()

    def moved_to(self, setting: Setting, known: dict[object, int]) -> None:
        """Look at other sizes; `known` are lengths of axes at these."""
        self.setting, self.known = setting, known
        self._known_lengths, self._known_tiles = {}, {}

    def _picked(self) -> set[str]:
        """The axes of which single places are read, and nothing is made along."""
        steps = self.steps.values()
        single = {step.node.op.axis for step in steps if isinstance(step.node.op, ir.Gather)}
        made = (step.node.type.names for step in steps if step.load is None)
        return single - {name for names in made for name in names}

    # --- steps ---

    def _graph(self, frame: str) -> Graph:
        """The kernel's graph, or the body of its walk."""
        return (
            self.kernel.graph
            if self.recurrence is None or frame == OUTER
            else self.recurrence.op.body
        )

    def _visit(self, frame: str, id: int) -> Key:
        """The key of a value, after the steps that it needs."""
        graph = self._graph(frame)
        node, key = graph[id], (frame, id)
        if key in self.steps:
            return key
        if frame == OUTER and id in self.kernel.loads and id not in self.own:
            self.steps[key] = Step(key, node, graph, (), self.kernel.loads[id], self.looping)
            return key
        if frame == BODY and isinstance(node.op, ir.Input):
            return self._entering(node)
        if (
            self.recurrence is not None
            and node.operands == (self.recurrence.id,)
            and frame == OUTER
        ):
            return self._visit(BODY, self.recurrence.op.body.outputs[node.op.name])
        used = node.operands[1:] if isinstance(node.op, ck.Last) else node.operands
        if isinstance(node.op, ck.NearGram):  # the others are for chunks of hard gates
            used = (node.operands[0], node.operands[2], node.operands[1])
        operands = tuple(self._visit(frame, each) for each in used)
        self.steps[key] = Step(key, node, graph, operands, None, self.looping)
        return key

    def _entering(self, node: Node) -> Key:
        """A state, or a capture of a walk: one that all tokens share is there from the first on."""
        assert self.recurrence is not None
        if node.op.name in self.states:
            return (STATE, node.op.name)
        id = self.recurrence.operands[self.recurrence.op.captures.index(node.op.name)]
        along = self.recurrence.op.stream.name in self.kernel.graph[id].type.names
        self.looping = along or not self.kernel.tokenwise
        key = self._visit(OUTER, id)
        self.looping = True
        return key

    # --- lengths ---

    def size(self, axis: Axis) -> int:
        """The length of an axis, in all."""
        return self._number(self.inner.get(axis.name, axis.size))

    def _number(self, size: sympy.Expr) -> int:
        if size not in self.known:
            self.known[size] = math.ceil(evaluate(size, self.setting.sizes))
        return self.known[size]

    @property
    def row_counts(self) -> frozenset[sympy.Symbol]:
        """The sizes that say how many rows of a chunk a token has."""
        return frozenset(symbol for each in self.inner.values() for symbol in free_symbols(each))

    @property
    def most(self) -> int:
        """The largest number of indices of a blocked dim that a program has."""
        second = self.kernel.second_split
        if second is not None and self.size(second) <= NEAR:
            return FEW
        return MOST_OF_WIDE if self.is_short else self.kernel.most

    @property
    def is_short(self) -> bool:
        """Whether the programs of a walk have short blocks of what they share."""
        dim = shrinking(self.kernel) if self.setting.data == WIDE else None
        return dim is not None and BLOCK < self._number(dim) <= 2 * BLOCK

    def length(self, axis: Axis) -> int:
        """The length of the part of an axis that a program has at a time."""
        found = self._known_lengths.get(axis)
        if found is None:
            found = self._known_lengths[axis] = self._length(axis)
        return found

    def _length(self, axis: Axis) -> int:
        kernel = self.kernel
        if not self.is_tiled(axis):
            return 1
        if kernel.is_split(axis.name) or (kernel.rows and axis.name == kernel.rows.name):
            return min(self.most, self.size(axis))
        if axis.kind == "stream":
            return int(self.setting.sizes[ck.CHUNK.name])
        return self.size(axis)

    @property
    def rows(self) -> int:
        """The number of rows of a chunk: one for each micro-step of a token, or entry of its
        rank."""
        of_token = max(map(self._number, self.inner.values()), default=1)
        return int(self.setting.sizes[ck.CHUNK.name]) * of_token

    def tile(self, axes: Iterable[Axis]) -> list[int]:
        """The dims of a tile, each a power of 2 of at least 16; axes of one index are none. The
        steps of a token are no dim: they are rows; nor is a dim that goes index by index."""
        axes = tuple(axes)
        found = self._known_tiles.get(axes)
        if found is None:
            found = self._known_tiles[axes] = self._tile(axes)
        return found

    def _tile(self, axes: Iterable[Axis]) -> list[int]:
        tiled = [axis for axis in axes if self.is_tiled(axis) and axis != self.kernel.turn]
        dims = (self.length(axis) for axis in tiled if axis.name not in self.inner)
        found = [max(16, 1 << (length - 1).bit_length()) for length in dims]
        inner = math.prod(self.length(axis) for axis in tiled if axis.name in self.inner)
        return [found[0] * inner, *found[1:]] if found else found

    def has_dim(self, axis: Axis) -> bool:
        """Whether tiles have a dim of their own along an axis."""
        own = self.is_tiled(axis) and axis.name not in self.inner
        return own and axis != self.kernel.turn

    def is_tiled(self, axis: Axis) -> bool:
        """Whether a program has a vector of places along an axis, not one."""
        found = self._known_tiled.get(axis)
        if found is None:
            found = self._known_tiled[axis] = self._is_tiled(axis)
        return found

    def _is_tiled(self, axis: Axis) -> bool:
        rows = self.kernel.rows
        if rows is not None and axis.name == rows.name:
            return True
        if axis.kind == "batch" or axis.name in self.picked | self.blocks:
            return False
        if any(axis.name == each.name for each in self.kernel.grid):
            return False
        walked = self.recurrence is not None and axis.name == self.recurrence.op.stream.name
        return axis.kind != "stream" or not (walked or axis.size.has(ck.CHUNK))

    def elements(self, axes: Iterable[Axis]) -> int:
        """The number of elements of a value that a program has."""
        return math.prod(self.length(axis) for axis in axes)

    def whole(self, axes: Iterable[Axis]) -> int:
        """The number of elements of a value in all."""
        return math.prod(self.size(axis) for axis in axes)

    @cached_property
    def axes(self) -> dict[str, Axis]:
        """The axes of all values, by name."""
        graphs = [self.kernel.graph, *([self.recurrence.op.body] if self.recurrence else [])]
        return {a.name: a for graph in graphs for node in graph for a in node.type.axes}

    @cached_property
    def lengths(self) -> dict[str, int]:
        """The length of the part of each axis that a program has at a time, by name."""
        return {name: self.length(axis) for name, axis in self.axes.items()}

    @cached_property
    def chunks(self) -> int:
        """The number of chunks that a program goes through."""
        return 1 if self.recurrence is None else self.size(self.recurrence.op.stream)

    def often(self, each: bool) -> int:
        """The number of times that a program computes a value: once, or at each chunk."""
        return self.chunks if each else 1

    @property
    def programs(self) -> int:
        """The number of programs."""
        rows = self.kernel.rows
        own = [axis for axis in self.kernel.grid if rows is None or axis.name != rows.name]
        return self.sharing * math.prod(map(self.size, own))

    @property
    def sharing(self) -> int:
        """The number of programs that share what the grid has one of."""
        axes = [axis for axis in (self.kernel.split, self.kernel.rows) if axis is not None]
        return math.prod(math.ceil(self.size(axis) / self.most) for axis in axes)

    def loads(self) -> Iterator[Step]:
        """The values that are read from memory."""
        return (step for step in self.steps.values() if step.load is not None)

    def stored(self) -> Iterator[tuple[str, Node, bool]]:
        """Each buffer that is written, the node whose type it has, and whether at each chunk."""
        graph = self.kernel.graph
        for name, id in self.kernel.stores.items():
            yield name, graph[id], self.recurrence is not None
        for name in self.kernel.ends.values():
            (node,) = (graph[id] for id, each in self.kernel.loads.items() if each == name)
            yield name, node, False
