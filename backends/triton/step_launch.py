"""One launch of a kernel that walks tokens: what it is given, how much a program holds, how many
programs there are."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from archc.backends.eager.scope import Scope
from archc.backends.triton.function import TORCH
from archc.backends.triton.launch import LAUNCHING, write_launch
from archc.backends.triton.naming import size_name
from archc.backends.triton.schedule import Schedule
from archc.backends.triton.step_ops import STEP_OPS
from archc.backends.triton.step_text import step_text, symbols_of
from archc.backends.triton.steps import steps_source
from archc.backends.writer import Writer

from archc.dims import Axis
from archc.ir.chunk import final, start
from archc.ir.graph import Graph, Node, Type

PIECES = {
    *LAUNCHING, "step_block", "step_part", "step_warps", "step_fits", "step_numbers",
}  # fmt: skip

LOCALS = ("part", "numbers", "weights", "moving", "in_turn", "warps")
"""Names of numbers that a launch needs."""


@dataclass(frozen=True)
class Given:
    """The tensors of a launch, as they are written: captures, states before and after, results.
    `layouts`: the order of a capture's dims where it is not that of its type; `indices`: which rows
    of the pools. `data`: the dtype of the products. `told`: the name of what a launch returns."""

    captures: Mapping[str, str]
    before: Mapping[str, str]
    after: Mapping[str, str]
    results: Mapping[str, str]
    layouts: Mapping[str, tuple[str, ...]]
    data: str
    indices: tuple[str, str] = ("None", "None")
    told: str = ""

    @property
    def tensors(self) -> dict[str, str]:
        """Those that the kernel is given, by its names for them: all but results."""
        before = {start(state): text for state, text in self.before.items()}
        after = {final(state): text for state, text in self.after.items()}
        return {**self.captures, **before, **after}


class StepLaunch:
    """The kernel of one recurrence `node` of a graph, and the lines that launch it from `body`."""

    def __init__(
        self, schedule: Schedule, body: Scope, graph: Graph, node: Node, name: str,
        results: Collection[str], numbers: Collection[str],
    ):  # fmt: skip
        self.body, self.op = body, node.op
        self.graph: Graph = schedule.tokenwise(graph, node, results)
        kernel = schedule.steps(self.graph, name)
        self.made = steps_source(kernel, STEP_OPS, node.op.stream.name, numbers)
        self.title = ""

    def write_kernel(self) -> None:
        """Append the kernel to the file."""
        file = self.body.file
        file.kernels |= {*PIECES, *self.made.pieces}
        self.title = file.names.fresh(self.made.kernel.name)
        file.sections.append(step_text(self.made, self.title))

    def type_of(self, result: str) -> Type:
        """The type of a result."""
        return self.graph[self.graph.outputs[result]].type

    def room(self, type: Type, device: str, dtype: str) -> str:
        """New memory for a result."""
        shape = ", ".join(self.body.length(axis).text for axis in type.axes)
        dtype = TORCH.get(type.dtype, dtype)
        return f"torch.empty({shape}, device={device}, dtype={dtype})"

    # --- how much a program holds ---

    def _length(self, axis: Axis) -> str:
        return self.body.ask(self.body.length(axis).text)

    def _size(self, axis: Axis) -> str:
        return self.body.size(axis.size).text

    def _tile(self, axes: Collection[Axis]) -> list[str]:
        """The lengths of the tile of a value, without those of which a program has one index."""
        kernel = self.made.kernel
        grid = {axis.name for axis in kernel.grid}
        found = ["16"] if kernel.rows is not None and kernel.rows in axes else []
        for axis in axes:
            if kernel.split is not None and axis.name == kernel.split.name:
                found.append("part")
            elif axis.name not in grid and axis.kind == "dim":
                found.append(f"step_block({self._size(axis)})")
        return found

    def write_sizes(self, writer: Writer) -> None:
        """The lines that say how many numbers a program holds: of states, in registers; of weights,
        and of what it reads at a token."""
        split, op = self.made.kernel.split, self.op
        if split is not None:
            largest = max(op.states, key=lambda state: len(state.axes))
            rest = [axis for axis in largest.axes if axis.name != split.name]
            least = 16 if any("tl.dot" in line for line in self.made.writer.lines) else 8
            others = " * ".join(self._tile(rest)) or "1"
            programs = " * ".join(self._length(axis) for axis in self.made.kernel.grid)
            writer.line(f"part = step_part({self._size(split)}, {others}, {least}, {programs})")
        writer.line(f"numbers = {total([self._tile(state.axes) for state in op.states])}")
        fold = self.made.fold
        inputs = [self.graph[id].type for id in fold.operands[: len(op.captures)]]
        tiles = [(op.stream.name in type.names, self._tile(type.axes)) for type in inputs]
        weights = [tile for moves, tile in tiles if not moves and len(tile) > 1]
        writer.line(f"weights = {total(weights)}")
        writer.line(f"moving = {total([tile for moves, tile in tiles if moves])}")

    # --- the launch ---

    def write(self, writer: Writer, given: Given) -> None:
        """The launch."""
        body, kernel = self.body, self.made.kernel
        tensors = {**given.tensors, **given.results}
        items = [self._tensor(name, tensors[name], given.layouts) for name in self.made.arguments]
        for text in given.indices:
            stride = "1" if text == "None" else f"1 if {text} is None else {text}.stride(0)"
            items.append(f"{text}, {stride}")
        names = [self.op.stream.name, "batch"][: 1 if kernel.rows is None else 2]
        counts = [body.ask(body.lengths[name]) for name in names]
        programs = " * ".join(self._programs(writer, given))
        most = 16 if kernel.rows is None else 8
        writer.line(f"warps = step_warps(numbers + weights // 2, {most})")
        write_launch(
            writer, self.title, programs, items, counts,
            [*self._fixed(), f"**step_numbers({given.data})"],
            '{"num_warps": warps, "num_stages": 2}', given.told,
        )  # fmt: skip

    def in_order(self, given: Given) -> list[str]:
        """The tensors that the kernel is given, in its order, with which rows of pools."""
        known, numbers = given.tensors, self.made.numbers
        names = [name for name in self.made.arguments if name in known and name not in numbers]
        return [*(known[name] for name in names), *given.indices]

    def shared(self, given: Given) -> str:
        """Whether states after are written over those before, where that decides the launch."""
        if not self.made.blocks_in_turn:
            return ""
        self.body.file.kernels.add("shares_memory")
        pairs = [(given.after[s], given.before[s]) for s in sorted(self.made.whole_states)]
        return " or ".join(f"shares_memory({after}, {old})" for after, old in pairs)

    def _fixed(self) -> list[str]:
        """Sizes and blocks, by name."""
        made, size = self.made, self.body.size
        fixed = [f"{size_name(symbol)}={size(symbol).text}" for symbol in symbols_of(made)]
        known = {"ROWS": "16", "PART": "part"}
        for block, length in sorted(made.blocks.items(), key=lambda item: item[0]):
            fixed.append(f"{block}={known.get(block) or f'step_block({size(length).text})'}")
        return [*fixed, "BLOCKS=in_turn"] if made.blocks_in_turn else fixed

    def _programs(self, writer: Writer, given: Given) -> list[str]:
        """How many programs there are; if pools are written in place, one does every block of what
        several blocks would write."""
        made, kernel = self.made, self.made.kernel
        programs = [self.body.length(axis).text for axis in kernel.grid]
        if kernel.rows is not None:
            programs[0] = f"-(-{programs[0]} // 16)"
        if kernel.split is None:
            return programs
        blocks = f"-(-{self._size(kernel.split)} // part)"
        if made.blocks_in_turn:
            writer.line(f"in_turn = {blocks} if {self.shared(given)} else 1")
            blocks = f"-({blocks[1:]} // in_turn)"
        return [*programs, blocks]

    def _tensor(self, name: str, text: str, layouts: Mapping[str, tuple[str, ...]]) -> str:
        """A tensor and its strides along the axes of its type; 0 along those it lacks."""
        if name in self.made.numbers:
            return text
        names = self.made.arguments[name].type.names
        layout = layouts.get(name, names)
        if layout == names:
            return f"{text}, *{text}.stride()"
        places = [layout.index(n) if n in layout else None for n in names]
        return ", ".join([text, *("0" if at is None else f"{text}.stride({at})" for at in places)])


def total(tiles: list[list[str]]) -> str:
    """How many numbers tiles have together: equal ones are counted."""
    counts: dict[str, int] = {}
    for tile in tiles:
        text = " * ".join(tile) or "1"
        counts[text] = counts.get(text, 0) + 1
    return " + ".join(f"{n} * {text}" if n > 1 else text for text, n in counts.items()) or "0"
