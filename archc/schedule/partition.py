"""Chunk IR -> kernel IR: which values are computed together.

    before the states      |   along the chunks   |   after
    a program a chunk      |   a program a head   |   a program a chunk
    sums, pairs, the rest  |                      |   the rest, pairs

The nodes are cut where they depend on a carried state: a Recurrence is a kernel that walks the
chunks, and what stands between two Recurrences is done for every chunk at once. There pairs of rows
that decay have a kernel of their own: they read the sums of their gates at other rows, so from
memory, and with all else in the same program its registers would not do.

A value that another kernel needs goes through memory, or is made there again from what does,
whichever moves fewer bytes. A walk is given what it needs ready made. What no kernel can do stays
with PyTorch: sums over whole sequences, tables, solves.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from archc.dims import Axis
from archc.ir import chunk as ck
from archc.ir import layer as ir
from archc.ir.free_names import numbered
from archc.ir.graph import Graph, Node
from archc.ir.kernel import Buffer, Kernel, Kernels, made_here
from archc.ir.roles import OUTPUT, PREPARE, SCAN, SCORES, SOLVE, SYSTEM, held
from archc.ir.value_names import is_saved, unsaved
from archc.lowering.blocked import sums_by_blocks
from archc.schedule.axes import counts_chunks, own_dims, reduction_dims, scans_numbers, split_of
from archc.schedule.in_place import in_place
from archc.schedule.kept import DIM, Kept
from archc.schedule.levels import CHUNKS, PAIRS, Levels, kind_of
from archc.schedule.plain_factors import one_sum, only_adds
from archc.schedule.wide_scans import BLOCK, MOST

WHY = {
    CHUNKS: "every chunk at once",
    PAIRS: "every chunk at once, with pairs of rows that decay",
}
EACH = "along the chunks"

LONG, SHORT = 64, 32
"""The longest block of a dim of which a program does a part: with pairs it has many tiles."""

AHEAD = 32 * 1024
"""Bytes that a walk loads at a chunk, three chunks of which leave room for a second program."""


def partition(
    graph: Graph, name: str, stream: Axis, heads: Collection[str], fallback: Mapping[int, str],
    fused: bool = False,
) -> Kernels:  # fmt: skip
    """The kernels of a chunked form or of its gradient; nodes of `fallback` are in none, and why.
    `fused`: what follows on a walk is made by it as far as it can be; where its states are saved
    anyway, if all that it does is to add to one."""
    fused = fused and (one_sum(graph, heads) or not any(map(is_saved, graph.outputs)))
    levels = Levels(graph, heads, fallback, fused)
    return in_place(_Partition(graph, name, stream, heads, levels).kernels())


class _Partition:
    """Cuts one graph."""

    def __init__(
        self, graph: Graph, name: str, stream: Axis, heads: Collection[str], levels: Levels
    ) -> None:
        self.graph, self.name, self.stream, self.heads = graph, name, stream, heads
        self.levels = levels
        self.kept = Kept(graph, self.levels, heads)
        self.names = self._names()
        self.titles: dict[str, int] = {}

    def _names(self) -> dict[int, str]:
        """The names of buffers of values that are stored: an output's own, else what it holds."""
        own = {id: name for name, id in reversed(self.graph.outputs.items())}
        taken = {n.op.name for n in self.graph if isinstance(n.op, ir.Input)} | {*own.values()}
        taken |= {unsaved(name) for name in [*self.graph.outputs, *taken]}
        names: dict[int, str] = {}
        for id in dict.fromkeys([*self.kept.ids, *self.levels.fallback]):
            name = numbered(unsaved(held(self.graph, id)), taken, ".")
            names[id] = own.get(id, name) if id in self.kept.ids else name
            taken.add(names[id])
        return names

    def kernels(self) -> Kernels:
        """One kernel for each Recurrence and for each level between two."""
        made: list[Kernel] = []
        for level in range(self.levels.count):
            walk = kind_of(level) not in WHY
            made += self._recurrences(level) if walk else self._between(level)
        unread = {*self.kept.ids} - self._read(made)
        if unread:
            self.kept.ids = [id for id in self.kept.ids if id not in unread]
            self.names, self.titles = self._names(), {}
            return self.kernels()
        buffers = [
            Buffer(self.names[id], self.graph[id].type, self.kept.widths.of(id))
            for id in self.kept.ids
        ]  # fmt: skip
        return Kernels(self.graph, tuple(made), tuple(buffers), self.levels.fallback)

    def _read(self, made: Iterable[Kernel]) -> set[int]:
        """What somebody reads of what is kept: kernels, PyTorch, or who asks for the outputs. A
        reader may have found the same under another name since it asked."""
        read = {*self.graph.outputs.values(), *self.levels.ends}
        for kernel in made:
            nodes = made_here(kernel)
            nodes += [] if kernel.walk is None else [self.graph[kernel.walk]]
            read |= {o for node in nodes for o in node.operands} - {*kernel.stores.values()}
        stack, seen = [*self.levels.fallback], set[int]()
        while stack:
            operands = {*self.graph[stack.pop()].operands} - seen
            seen |= operands
            stack += operands - {*self.kept.ids}
        return read | seen

    def _title(self, word: str) -> str:
        """`chunk_output`, `chunk_output_2`: kernels are numbered where a kind has several."""
        self.titles[word] = count = self.titles.get(word, 0) + 1
        return f"{self.name}_{word}" + (f"_{count}" if count > 1 else "")

    def _role(self, level: int, nodes: Iterable[Node], first: bool) -> str:
        """The role of a kernel of a level between walks; `first`: before any walk."""
        if kind_of(level) == PAIRS:
            return SCORES
        if any(isinstance(node.op, ck.Conjugate) for node in nodes):
            return SYSTEM
        if self.titles and any(isinstance(node.op, ck.Inverse) for node in nodes):
            return SOLVE
        return PREPARE if first else OUTPUT

    def _between(self, level: int) -> list[Kernel]:
        """The kernels of what stands before, between or after walks."""
        levels = self.levels
        home = {
            self.names[id]: id for id in self.kept.ids
            if levels.of[id] == level and id not in levels.ends
            and not isinstance(self.graph[id].op, ir.Recurrence | ir.Result)
        }  # fmt: skip
        return [self._kernel_between(level, part) for part in self._parts(home) if part]

    def _parts(self, home: Mapping[str, int]) -> list[dict[str, int]]:
        """The values stored at a level, by kernels: products that all heads share are made once for
        all of them, before the rest, and not by the programs of every head."""
        inside = {id: self._inside([id], [id]) for id in home.values()}
        shared = {id for id, nodes in inside.items() if not self._has_heads(nodes)}
        made = [node for id in shared for node in inside[id]]
        if self._turned(made) or not any(map(self.levels.multiplies, made)):
            return [dict(home)]
        parts: list[dict[str, int]] = [{}, {}]
        for name, id in home.items():
            parts[id not in shared][name] = id
        return parts

    def _has_heads(self, nodes: Iterable[Node]) -> bool:
        """Whether some of these values have one for each head."""
        return any(axis.name in self.heads for node in nodes for axis in node.type.axes)

    def _kernel_between(self, level: int, home: dict[str, int]) -> Kernel:
        """One kernel of what stands before, between or after walks."""
        nodes = self._inside(home.values(), home.values())
        loads = self._loads(home.values())
        turned = self._turned(nodes)
        split = turned[0] if turned else self._split_between(nodes, list(home.values()))
        renamed = frozenset[str]()
        if split is None and kind_of(level) == PAIRS:
            split, renamed = self._split_renamed(nodes, list(home.values()))
        grid = self._grid(nodes, walked=False)
        first = not any(
            kind_of(each) not in WHY for each in range(level) if self.levels.has_recurrence(each)
        )
        word = self._role(level, nodes, first)
        why, most = (WHY[kind_of(level)],), SHORT if kind_of(level) == PAIRS else LONG
        title = self._title(word)
        if turned is not None:
            most = BLOCK if any(isinstance(n.op, ck.BlockSums) for n in nodes) else MOST
        kernel = Kernel(
            title, self.graph, loads, home, grid, split, why=why, most=most,
            in_parts=self.kept.widths.exact,
            second_split=None if turned else self._second_split(nodes, split),
            turn=turned[1] if turned else None, renamed=renamed,
        )  # fmt: skip
        return replace(kernel, blocked=blocked_dim(kernel))

    def _turned(self, nodes: Iterable[Node]) -> tuple[Axis, Axis] | None:
        """The dims of scans with two of them for every row, of which programs have a part and which
        goes index by index, if nothing but sums of blocks looks across the first."""
        dims = self.levels.turned
        made = [node for node in nodes if not isinstance(node.op, ck.BlockSums)]
        if dims is None or not any(scans_numbers(node) for node in made):
            return None
        crossed = {name for node in made for name in reduction_dims(self.graph, node)}
        return None if dims[0].name in crossed else dims

    def _recurrences(self, level: int) -> list[Kernel]:
        """The kernels of the walks of a level."""
        made = []
        for recurrence in self.levels.recurrences(level):
            made_by = {id for id, walk in self.levels.walk.items() if walk == recurrence.id}
            made_by -= set(self.levels.ends)
            stores = {self.names[id]: id for id in self.kept.ids if id in made_by}
            of_recurrence = {
                id: end for id, end in self.levels.ends.items() if end[0] == recurrence.id
            }
            ends = {end[1]: self.names[id] for id, end in of_recurrence.items() if id in self.names}
            start = [*recurrence.operands, *stores.values()]
            nodes = [*self._inside(start, stores.values()), *recurrence.op.body]
            loads, grid = self._loads(stores.values()), self._grid(nodes, walked=True)
            split = split_of(self.graph, recurrence, self.heads)
            made_of = [node for node in nodes if node.id not in stores.values()]
            most = SHORT if split and self._waits(recurrence, made_of, split) else LONG
            made.append(
                Kernel(
                    self._title(SCAN), self.graph, loads, stores, grid, split, recurrence.id, ends,
                    (EACH,), most=most,
                )
            )  # fmt: skip
        return made

    def _waits(self, recurrence: Node, nodes: Iterable[Node], split: Axis) -> bool:
        """Whether a walk reads its states as it makes them, each product waiting for the one
        before, and loads so little that a second program of it can multiply meanwhile."""
        loaded = [
            self.kept.bytes(node.id) // (DIM // SHORT if split in node.type.axes else 1)
            for node in nodes
            if isinstance(node.op, ir.Input) or node.id in self.names
            if any(axis.kind == "stream" for axis in node.type.axes)
        ]  # fmt: skip
        return not only_adds(recurrence.op) and sum(loaded) <= AHEAD

    def _loads(self, own: Collection[int]) -> dict[int, str]:
        """Nodes that a kernel reads from memory: made elsewhere, and inputs."""
        loads = {id: name for id, name in self.names.items() if id not in own}
        inputs = {n.id: n.op.name for n in self.graph if isinstance(n.op, ir.Input)}
        return {**loads, **inputs}

    def _inside(self, start: Iterable[int], own: Collection[int]) -> list[Node]:
        """The nodes that are computed in the kernel which stores or walks these."""
        seen: set[int] = set()
        stack = list(start)
        while stack:
            id = stack.pop()
            node = self.graph[id]
            loaded = id in self.names and id not in own
            if id in seen or id in self.levels.fallback or isinstance(node.op, ir.Recurrence):
                continue
            seen.add(id)
            stack += () if loaded else node.operands
        return [self.graph[id] for id in sorted(seen)]

    def _grid(self, nodes: Iterable[Node], walked: bool) -> tuple[Axis, ...]:
        """Axes of which a program has one index: batch, chunks and heads."""
        axes: dict[str, Axis] = {}
        for node in nodes:
            axes |= {axis.name: axis for axis in node.type.axes}
        if not walked:
            axes |= {a.name: a for node in self.graph for a in node.type.axes if counts_chunks(a)}
        order = sorted(axes.values(), key=lambda a: (a.kind != "batch", a.kind == "dim"))
        return tuple(
            axis for axis in order
            if axis.kind == "batch" or axis.name in self.heads
            or (axis.kind == "stream" and axis.name != self.stream.name and not walked)
        )  # fmt: skip

    def _second_split(self, nodes: Iterable[Node], split: Axis | None) -> Axis | None:
        """The other dim of what has two for every row, among scans of such: all of it would be in
        registers, with a part of the first."""
        if split is None or not any(len(self._dims(n)) > 1 for n in self.graph if scans_numbers(n)):
            return None
        wide = [self._dims(n) for n in nodes if _has_rows(n) and split in self._dims(n)]
        others = dict.fromkeys(axis for dims in wide for axis in dims if axis != split)
        return next(iter(others)) if len(others) == 1 else None

    def _dims(self, node: Node) -> list[Axis]:
        """The dims of a value that a program holds for a row."""
        return [
            axis for axis in own_dims(node.type.axes, self.heads) if not axis.size.has(ck.CHUNK)
        ]

    def _split_between(self, nodes: list[Node], stores: list[int]) -> Axis | None:
        """A dim that every stored value has and no op crosses. What is loaded under another name is
        loaded in parts all the same."""
        graph = self.graph
        crossed = {name for node in nodes for name in self._crossed(node)}
        for axis in graph[stores[0]].type.axes:
            fits = axis.kind == "dim" and axis.size != ck.CHUNK and axis.name not in self.heads
            everywhere = all(axis.name in graph[id].type.names for id in stores)
            if fits and axis.name not in crossed and everywhere:
                return axis
        return None

    def _split_renamed(
        self, nodes: list[Node], stores: list[int]
    ) -> tuple[Axis | None, frozenset[str]]:
        """A dim that is split although some stored values have it under another name, and its other
        names: no value may have it under two, and no op crosses it but to rename it."""
        graph = self.graph
        inside = [node for node in nodes if node.id not in self.names or node.id in stores]
        for axis in dict.fromkeys(axis for id in stores for axis in graph[id].type.axes):
            if axis.kind != "dim" or axis.size == ck.CHUNK or axis.name in self.heads:
                continue
            names = self._names_of(axis.name, inside)
            once = all(len(names & {*graph[id].type.names}) == 1 for id in stores)
            if once and not any(self._crosses(node, names) for node in inside):
                return axis, names - {axis.name}
        return None, frozenset()

    def _names_of(self, name: str, nodes: list[Node]) -> frozenset[str]:
        """All names that renaming ops give a dim of that name."""
        names, before = {name}, set[str]()
        while names != before:
            before = {*names}
            for pair in (pair for node in nodes for pair in _renamings(self.graph, node)):
                names |= {*pair} if names & {*pair} else set()
        return frozenset(names)

    def _crosses(self, node: Node, names: frozenset[str]) -> bool:
        """Whether an op looks across a dim of these names, or has two of them."""
        pairs = _renamings(self.graph, node)
        renames = [pair for pair in pairs if names >= {*pair}]
        crossed = names & self._crossed(node)
        return len(names & {*node.type.names}) > 1 or (bool(crossed) and not renames)

    def _crossed(self, node: Node) -> set[str]:
        """The dims that an op crosses; of another name for what is loaded the first one alone."""
        crossed = {*reduction_dims(self.graph, node)}
        if ir.renames(node.op):
            (given,) = (self.graph[operand] for operand in node.operands)
            if given.id in self.names or isinstance(given.op, ir.Input):
                return crossed - {*node.type.names}
        return crossed


def blocked_dim(kernel: Kernel) -> Axis | None:
    """The dim that a kernel goes along block by block: one of both states that it reads, which
    would take 8 warps at once."""
    graph, made = kernel.graph, made_here(kernel)
    read = {o for n in made for o in n.operands if o in kernel.loads} - {*kernel.stores.values()}
    grid = {axis.name for axis in kernel.grid}
    dims = [[a for a in graph[id].type.axes if a.name not in grid] for id in sorted(read)]
    states = [a for a in dims if len(a) > 1 and not any(map(_is_row, a))]
    if len(states) < 2 or kernel.split is not None or kernel.turn is not None:
        return None
    shared = (axis for axis in states[0] if all(axis in axes for axes in states))
    return next((axis for axis in shared if sums_by_blocks(kernel, axis) is not None), None)


def _is_row(axis: Axis) -> bool:
    return axis.kind == "stream" or axis.size.has(ck.CHUNK)


def _renamings(graph: Graph, node: Node) -> list[tuple[str, str]]:
    """The names that an op takes from the dims of a value, each with the one that it gives."""
    if not ir.renames(node.op):
        return []
    (labels,), (operand,) = node.op.ins, node.operands
    old = dict(zip(labels, graph[operand].type.names, strict=True))
    return [(old[label], axis.name) for label, axis in node.op.out if old[label] != axis.name]


def _has_rows(node: Node) -> bool:
    """Whether a value is one for each token."""
    streams = any(a.kind == "stream" and not counts_chunks(a) for a in node.type.axes)
    return streams or any(axis.size == ck.CHUNK for axis in node.type.axes)
