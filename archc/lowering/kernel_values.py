"""The values of a chunk kernel: where its programs stand, and what is in memory.

A program has one index of each axis of the grid, and a block of the axis that is split. Sequences
may be packed into one, and a walk may go in segments: then a table says which tokens and chunks a
program has; without one it has all of a row of the batch.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import sympy

from archc.dims import Axis
from archc.ir import chunk as ck
from archc.ir.free_names import marked
from archc.ir.graph import Node
from archc.ir.kernel import NARROW, SUMMED, Buffer, Kernel, made_here
from archc.ir.refusal import Refusal
from archc.lowering.about import about
from archc.lowering.blocks import product_by_blocks
from archc.lowering.exact import in_two_parts
from archc.lowering.micro import MicroSteps, Right, steps_of
from archc.lowering.names import axis_name, buffer_names, plain, size_name
from archc.lowering.paired import makes_pairs
from archc.lowering.row_decays import as_hard
from archc.lowering.turned import Turned
from archc.lowering.twice import AGAIN, HARD, RUN, Twice
from archc.lowering.values import Frame, Index, Made, Numbers, Padded, Place, Rules, Values
from archc.tile import language
from archc.tile.compose import Branch, Composer, ceil_div, size
from archc.tile.handle import Tile

CHUNK, BLOCK, CHUNKS = (size(name) for name in ("CHUNK", "BLOCK", "CHUNKS"))
BATCH, SEQUENCES, SEGMENTS, TOKENS = (size(n) for n in ("BATCH", "SEQUENCES", "SEGMENTS", "T"))
VARYING = (BATCH, SEQUENCES, SEGMENTS, TOKENS, CHUNKS)
"""Sizes that change from call to call: rows of the batch, rows of the table of sequences (or of
what stands once for a sequence), segments, tokens, and chunks."""

BACKWARD = size("BACKWARD")
"""The constant that is 1 where a walk that may go either way goes backward, else 0."""

EVEN = size("EVEN")
"""The constant that is 1 where tokens fill every chunk, so that none needs masks, else 0."""

ALONE = size("ALONE")
"""The constant that is 1 where a walk makes what becomes of its state alone, from 1 on, else 0."""

STAGES = "STAGES"
"""The constant that says how many chunks ahead a walk loads."""

NUMBERS = Numbers("DOT", "PRECISION", "SUMS", "SOLVE")
WORDS = frozenset(
    {"CHUNK", "BLOCK", "LEVELS", "DIMS", "STRONG_DIMS", "STAGES", "AGAIN", "RUN", "EVEN", "ALONE"}
    | {"NEAR_DIMS"} | {"DOT", "PRECISION", "SUMS", "SOLVE"}
    | {str(symbol) for symbol in VARYING}
)  # fmt: skip
"""Constants and sizes of kernels, which no size of a spec may be called."""

BESIDE = 2
"""Indices of the dim that is split which a thread has, where another dim goes index by index."""

TABLE = "rows"
ROW = "i"
"""The name of the dim of tokens that a program stores, unless a dim of the spec has it."""


@dataclass(frozen=True)
class Memory:
    """The memory behind a kernel's loads and stores: `buffers` between kernels, by name, which are
    contiguous as saved values are; those among them that are `outputs` of the graph, whose dtype
    the caller says; and `flat` ones, whose rows of all sequences stand one after the other."""

    buffers: Mapping[str, Buffer]
    outputs: Collection[str] = ()
    flat: Collection[str] = ()


def row_label(kernel: Kernel) -> str:
    """The name of the dim of tokens that a program stores."""
    axes = {axis for node in kernel.graph for axis in node.type.axes}
    return marked(ROW, {axis.name for axis in axes if axis.size != ck.CHUNK}, "_")


class KernelValues(Values):
    """The values of one kernel under construction; `tokens` is the stream of the tokens."""

    exclusive = True

    def __init__(self, kernel: Kernel, rules: Rules, tokens: str, memory: Memory):
        composer = Composer(plain(kernel.name), about(kernel))
        frame = Frame(kernel.graph, self._given, exact=False)
        super().__init__(composer, rules, frame, NUMBERS)
        self.kernel, self.tokens, self.memory = kernel, tokens, memory
        self.own = frozenset(kernel.stores.values())
        self.results: dict[tuple[int, str], Padded] = {}
        self.tensors: dict[str, language.Buffer] = {}
        self.nodes: dict[str, int] = {}
        self.parts: dict[str, sympy.Expr] = {}
        self.turns = set[str]()
        self.looped: dict[str, tuple[Tile, sympy.Symbol]] = {}
        self.pairs: dict[int, Padded] = {}
        self.here = made_here(kernel)
        self.micro = MicroSteps(kernel.graph, kernel.loads)
        self.in_parts, self.may_be_alone = False, kernel.alone is not None
        self.turned: Turned | None = None
        self.twice: Twice | None = None
        self.rows = row_label(kernel)
        self._names = buffer_names(kernel, {*WORDS, TABLE, HARD})
        self._begin()

    def _begin(self) -> None:
        """Sizes and constants, the grid, and what a program knows of its sequence."""
        k = self.k
        k.sizes(*map(str, VARYING), varying=True)
        k.fixed(CHUNK, size("LEVELS"), size(STAGES))
        k.dtypes("DOT", "SUMS", "SOLVE")
        k.precisions("PRECISION")
        self.symbols |= {ck.CHUNK: CHUNK, **self._steps()}
        walked, paired = self.kernel.walk is not None, any(map(makes_pairs, self.here))
        runs = ceil_div(CHUNKS, RUN) if paired else CHUNKS
        at, grid = {}, dict[str, tuple[Tile, sympy.Expr]]()
        for axis in self.kernel.grid:
            count = {"batch": SEQUENCES if walked else BATCH, "stream": runs}.get(axis.kind)
            name = "n" if axis.kind == "stream" else plain(axis.name)
            length = self.size(axis.size) if count is None else count
            found = k.program(name, length)
            at[axis.kind if axis.kind != "dim" else axis.name] = found
            if axis.kind == "dim":
                self.indices[axis.name] = Index(found)
            grid["n" if axis.kind == "stream" else axis_name(axis.name)] = found, length
        split = self.kernel.split
        if split is not None:
            k.fixed(BLOCK)
            blocks = ceil_div(self.size(split.size), BLOCK)
            block = k.program("block", blocks)
            grid["block"] = block, blocks
            self.first_part = self.title(block * BLOCK, "first_part")
            self.block = block
            for node in self.kernel.graph:
                if isinstance(node.op, ck.BlockSums) and node.op.axis == split.name:
                    self.indices[node.type.axes[-1].name] = Index(block)
        zero = k.lift(0, "i32")
        self.batch, self.n = at.get("batch", zero), at.get("stream", zero)
        if paired:
            k.fixed(AGAIN, RUN)
            self.twice = Twice(k, grid, CHUNKS, self.numbers.operand)
            self.again = self.twice.takes_tree
        else:
            self._stand()

    def _steps(self) -> dict[Any, sympy.Expr]:
        """The number of steps that a token takes, where a spec has a name for it."""
        graph = self.kernel.graph
        rows = ((n.op, graph[n.operands[0]].type) for n in graph if isinstance(n.op, ck.Chunks))
        steps = {type.axis(op.steps).size: steps_of(op.row) for op, type in rows if op.steps}
        return {size: count for size, count in steps.items() if size.is_Symbol and count.is_Integer}

    @contextmanager
    def chunk_of_program(self) -> Iterator[None]:
        """The work on the chunk of a program, or on each of them, one after the other."""
        if self.twice is None:
            with self.k.branch(self.live), self.inner():
                yield
            return
        with self.twice.each(), self.inner():
            self.n = self.twice.n
            self._stand()
            with self.k.branch(self.live), self.inner():
                yield

    def takes_tree(self, hard: Tile) -> Tile:
        """Whether pairs are made by the tree here, of whether gates are hard."""
        return as_hard(hard) if self.twice is None else self.twice.takes_tree(hard)

    def _stand(self) -> None:
        """The part of a sequence where a program stands."""
        walked = self.kernel.walk is not None
        self._sequence(self.batch if walked else self.n, SEQUENCES if walked else CHUNKS)
        for axis in (axis for node in self.kernel.graph for axis in node.type.axes):
            if axis.kind == "batch":
                self.indices[axis.name] = Index(self.row)
            elif axis.kind == "stream" and axis.name != self.tokens:
                self.indices[axis.name] = Index(self.n)

    def _sequence(self, at: Tile, count: sympy.Expr) -> None:
        """The part of a sequence that a program works on: all tokens, or those of a row of the
        table."""
        k = self.k
        doc, fields_of_row = "of packed sequences or segments", len(language.ROW) - 1
        table = k.buffer(TABLE, "i64", doc=doc, optional=True, r=count, field=fields_of_row)
        zero = k.lift(0, "i32")
        with k.branch(k.given(table), language.ROW) as packed:
            fields = [k.load(table, at, place).to("i32") for place in range(fields_of_row)]
            packed.give(*fields, fields[0] >= 0)
        with k.otherwise(packed) as alone:
            ends = k.lift(TOKENS), zero, k.lift(CHUNKS)
            true = k.full(1, dtype="bool")
            alone.give(self.batch, zero, zero, *ends, self.batch, true)
        named = zip(packed.results, language.ROW, strict=True)
        found = [self.title(tile, name) for tile, name in named]
        self.sequence, self.base, self.start, self.end = found[:4]
        self.low, self.high, self.row, self.live = found[4:]

    # --- sizes and places ---

    def constant(self, symbol: sympy.Basic, name: str = "") -> None:
        super().constant(symbol, name or size_name(symbol, WORDS))

    def length(self, axis: Axis) -> sympy.Expr:
        if axis.size == ck.CHUNK:
            return CHUNK
        if axis.name in self.looped:
            return self.looped[axis.name][1]
        return BLOCK if self.is_split(axis) else super().length(axis)

    def levels(self, axis: Axis) -> sympy.Expr:
        return size("LEVELS") if axis.size == ck.CHUNK else super().levels(axis)

    def is_blocked(self, axis: Axis) -> bool:
        return axis.name in self.looped

    def is_split(self, axis: Axis) -> bool:
        """Whether a program has a block of an axis alone."""
        return self.kernel.is_split(axis.name)

    def _all_of(self, axis: Axis, label: str) -> Index:
        first = self.looped[axis.name][0] if axis.name in self.looped else None
        if first is None and not self.is_split(axis):
            return super()._all_of(axis, label)
        first = self.first_part if first is None else first
        most = BESIDE if self.kernel.turn is not None else 0
        at = self.title(first + self.k.iota(axis.base, self.length(axis), most), "part")
        mask = self.inside(axis.name, at < self.k.lift(self.size(axis.size)))
        return Index(at, True, mask).along(label)

    @contextmanager
    def block_of(self, axis: Axis, first: Tile, length: sympy.Symbol) -> Iterator[None]:
        """Values of a block of an axis alone, from an index on."""
        self.looped[axis.name] = first, length
        yield
        self.looped.pop(axis.name)

    @contextmanager
    def all_at_once(self, axis: Axis) -> Iterator[None]:
        block = self.looped.pop(axis.name, None)
        yield
        if block is not None:
            self.looped[axis.name] = block

    def borders(self, axis: Axis) -> tuple[Tile, Tile]:
        if axis.kind == "stream":
            ends = (self.start, self.end), (self.low, self.high)
            return ends[0 if axis.name == self.tokens else 1]
        return super().borders(axis)

    def at_tokens(self, id: int) -> dict[str, Index] | Refusal:
        """The tokens whose values a program stores: those of its rows, if it is right there."""
        right = self.micro.of(id)
        if isinstance(right, Refusal):
            return right
        if right is not None:
            return self._at_steps(right)
        token = self.title(self.first_token() + self.k.iota(self.rows, CHUNK), "t")
        self.see(self.rows)
        return {self.tokens: Index(token, False, self.inside(self.tokens, self.before_end(token)))}

    def steps_met(self, node: Node) -> Refusal | None:
        """The refusal of a value along tokens in chunks again, if it is not right at all rows."""
        own = self.frame.owner is None and node.operands[0] not in self.kernel.loads
        return self.micro.met(node) if own else None

    def before_end(self, token: Tile) -> Tile:
        """Whether tokens at rows of this chunk are of the sequence."""
        self.k.fixed(EVEN)
        return (token < self.end) | self.k.at_most(1, EVEN)

    def first_token(self) -> Tile:
        """The token of the first row of this chunk."""
        return self.title(self.base + self.n * CHUNK, "first_t")

    def _at_steps(self, right: Right) -> dict[str, Index]:
        """The tokens of rows that are steps of them."""
        row = self.whole(right.row, self.rows)
        sizes = (self.size(size) for size in (steps_of(right.row), right.row.size))
        steps, rows = (self.k.lift(size, "i32") for size in sizes)
        every = self.title(self.base * steps + self.n * rows, "first_r") + row.at
        token, step = self.title(every // steps, "t"), self.title(every % steps, "step_of_t")
        inside = self.before_end(token)
        inside = inside if row.mask is None else inside & row.mask
        if right.step is not None:
            chosen = right.step if right.step >= 0 else steps + right.step
            inside = inside & step.equals(chosen)
        self.see(self.rows)
        place = {self.tokens: Index(token, False, self.inside(self.tokens, inside))}
        return place | ({right.axis: Index(step)} if right.axis else {})

    # --- products ---

    def matrices(self, node: Node, places: Sequence[Place]) -> list[int]:
        graph, found = self.frame.graph, []
        for number, (operand, place) in enumerate(zip(node.operands, places, strict=True)):
            axes = [axis for axis in graph[operand].type.axes if place[axis.name].label]
            found += [number] if self.is_matrix(axes, place) else []
        return found

    def is_matrix(self, axes: Sequence[Axis], place: Place) -> bool:
        """Whether values lie between two dims, all of both; in a walk a program has a part."""
        return self.kernel.walk is None and len(axes) == 2 and all(
            axis.kind == "dim" and not axis.size.has(ck.CHUNK) and place[axis.name].whole
            and not self.is_split(axis) for axis in axes
        )  # fmt: skip

    # --- tiles of three dims ---

    def dims(self, id: int) -> list[Axis]:
        """The dims of a value's tile, but for its rows."""
        axes = self.frame.graph[id].type.axes
        own = [a for a in axes if a.kind == "dim" and a.name not in self.indices]
        return [axis for axis in own if not axis.size.has(ck.CHUNK)]

    def scans_matrices(self) -> bool:
        """Whether a graph has scans of a matrix for every row: nothing else makes many such."""
        found = (n for n in self.kernel.graph if isinstance(n.op, ck.Scan) and not n.op.matrix)
        return self.kernel.walk is None and any(len(self.dims(node.id)) > 1 for node in found)

    def is_deep(self, id: int) -> bool:
        return bool(self.deep(id))

    def deep(self, id: int) -> list[Axis]:
        """The dims of what a value is made from here that has two for every row, among scans of
        such: its tile is too large for registers, and the scan for compilers, which write out every
        number. None if there is no such value."""
        if self.has_few or self.frame.owner is not None or not self.scans_matrices():
            return []
        graph, stack, seen = self.frame.graph, [id], set[int]()
        while stack:
            node = graph[stack.pop()]
            if node.id in seen:
                continue
            seen.add(node.id)
            rows = [a for a in node.type.axes if a.size == ck.CHUNK or a.name == self.tokens]
            if rows and self.tokens not in self.indices and len(self.dims(node.id)) > 1:
                return self.dims(node.id)
            here = () if self.is_loaded(node.id) else node.operands
            stack += [operand for operand in here if not self.is_loaded(operand)]
        return []

    def summed_in_turn(self, node: Node, place: Place) -> Axis | None:
        id, summed = node.operands[0], node.op.axes
        axes = self.frame.graph[id].type.axes
        kept = [place[a.name].label for a in axes if a.name not in summed and a.name in place]
        tiled = [a for a in axes if a.name in summed and a.name not in self.indices]
        within = [a for a in self.dims(id) if a.name in summed and not self.is_blocked(a)]
        count = len(tiled) + sum(label is not None for label in kept)
        wide = count > 2 and len(within) > 0 and count > len(summed)
        return within[0] if wide and node.op.fn == "sum" and self.is_deep(id) else None

    # --- products ---

    def by_blocks(self, node: Node, *given: Any) -> Made:
        return product_by_blocks(self, node, *given)

    def part_length(self, axis: Axis, turn: bool = False) -> sympy.Symbol:
        """The length of a block of an axis that a loop takes block by block; `turn`: a loop for all
        that is stored."""
        assert not self.is_blocked(axis), "a loop is at a block of it"
        length = self.length(axis)
        (part,) = self.k.fixed(size(f"{length}_{'TURN' if turn else 'PART'}"))
        self.parts[part.name] = axis.size
        self.turns |= {part.name} if turn else set()
        return part

    def is_exact(self, node: Node) -> bool:
        """Whether a product takes both parts of numbers."""
        return self.frame.owner is None and node.id in self.kernel.in_parts

    def multiplied(self, node: Node, left: Padded, right: Padded) -> Tile:
        if not self.is_exact(node) or self.frame.exact:
            return super().multiplied(node, left, right)
        self.in_parts = True
        return in_two_parts(self, left, right)

    # --- memory ---

    def is_loaded(self, id: int) -> bool:
        return self.frame.owner is None and id in self.kernel.loads and id not in self.own

    def is_stored(self, id: int) -> bool:
        return self.frame.owner is None and id in self.own

    def _given(self, node: Node, place: Place) -> Made | None:
        """A value that another kernel made, or that the caller has."""
        if self.turned is not None and self.frame.owner is None:
            found = self.turned.given(self, node, place)
            if found is not None:
                return found
        if not self.is_loaded(node.id):
            return None
        name = self.kernel.loads[node.id]
        there = self._unless_alone(node, self.in_memory(node, place, name))
        found = self.load(self.tensor(name, node), there)
        if node.type.dtype == "int":
            return Padded(found.tile.to("i32"), found.zero)
        return found

    def _unless_alone(self, node: Node, place: Place) -> Place:
        """A place that is none where a walk is alone with its state, of what has its columns."""
        split, streams = self.kernel.split, any(a.kind == "stream" for a in node.type.axes)
        if split is None or not self.may_be_alone or not streams:
            return place
        if split.name not in node.type.names:
            return place
        index = place[axis_name(split.name)]
        assert index.mask is not None, "a program has a block of it"
        (alone,) = self.k.fixed(ALONE)
        there = index.mask & self.k.at_most(alone, 0)
        return {**place, axis_name(split.name): replace(index, mask=there)}

    @contextmanager
    def not_alone(self) -> Iterator[None]:
        """Values that are made where a walk is not alone with its state."""
        before, self.may_be_alone = self.may_be_alone, False
        yield
        self.may_be_alone = before

    def is_table(self, buffer: language.Buffer) -> bool:
        """Whether a buffer is the table of sequences."""
        return buffer.name == TABLE

    def tensor(self, name: str, node: Node) -> language.Buffer:
        """The buffer of a value, as large as the value is."""
        if name not in self.tensors:
            axes = {
                axis_name(axis.name): self._extent(name, axis, node)
                for axis in self._kept(name, node)
            }
            title = self._names[name]
            dtype = self._dtype(name, node, title)
            optional = name in self.kernel.optional
            self.tensors[name] = self.k.memory(title, axes, dtype, optional=optional)
            self.nodes[name] = node.id
        return self.tensors[name]

    @contextmanager
    def if_there(self, name: str, node: Node) -> Iterator[Branch | None]:
        """Statements that are done where a launch has the buffer of a value; None: always."""
        if name not in self.kernel.optional:
            yield None
            return
        with self.k.branch(self.k.given(self.tensor(name, node))) as there, self.inner():
            yield there

    def _kept(self, name: str, node: Node) -> list[Axis]:
        """The axes that a value has in memory."""
        if self._is_by_tokens(name):
            return [*self.memory.buffers[name].type.axes]
        flat = name in self.memory.flat and any(a.kind == "stream" for a in node.type.axes)
        return [axis for axis in node.type.axes if not (flat and axis.kind == "batch")]

    def _extent(self, name: str, axis: Axis, node: Node) -> sympy.Expr:
        """How long an axis is in memory."""
        if axis.kind == "batch":
            streams = any(other.kind == "stream" for other in node.type.axes)
            return BATCH if streams else SEQUENCES
        if axis.kind == "stream":
            if axis.name == self.tokens:
                return TOKENS
            return SEGMENTS if name in self.memory.flat else CHUNKS
        return self.size(axis.size)

    def _dtype(self, name: str, node: Node, title: str) -> str:
        if node.type.dtype != "real":
            return {"int": "i64", "bool": "bool"}[node.type.dtype]
        buffer = self.memory.buffers.get(name)
        if buffer is None or name in self.memory.outputs:
            return f"{language.OF_BUFFER}{title}"
        return {NARROW: "DOT", SUMMED: "SUMS"}.get(buffer.width, "f32")

    def sums_at(self, node: Node, place: Place) -> Tile:
        """The values of some rows of what is in memory, as they are there."""
        whole = {
            axis.name: place.get(axis.name) or self.indices.get(axis.name) or self.whole(axis)
            for axis in node.type.axes
        }
        buffer = self.tensor(self.kernel.loads[node.id], node)
        return self.load(buffer, self.in_memory(node, whole, self.kernel.loads[node.id])).tile

    def _is_by_tokens(self, name: str) -> bool:
        """Whether the rows of a buffer stand where their tokens do."""
        return name in self.memory.buffers and self.memory.buffers[name].by_tokens

    def _token_of(self, node: Node, place: Place) -> Index:
        """The tokens of rows of this chunk."""
        (row,) = (place[axis.name] for axis in node.type.axes if axis.size == ck.CHUNK)
        token = self.title(self.first_token() + row.at, "t")
        inside = self.before_end(token) if row.mask is None else self.before_end(token) & row.mask
        return Index(token, False, self.inside(self.tokens, inside))

    def in_memory(self, node: Node, place: Place, name: str = "") -> dict[str, Index]:
        """A place by the axes of a buffer: what has no stream has a row for each sequence, and rows
        of chunks may stand where their tokens do."""
        if self._is_by_tokens(name):
            place = {**place, self.tokens: self._token_of(node, place)}
            return {axis_name(axis.name): place[axis.name] for axis in self._kept(name, node)}
        streams = any(axis.kind == "stream" for axis in node.type.axes)
        found = {}
        for axis in node.type.axes:
            own = axis.kind == "batch" and not streams
            found[axis_name(axis.name)] = Index(self.sequence) if own else place[axis.name]
        return found
