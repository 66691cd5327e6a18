"""One launch of a program that walks tokens: what it is given, how much a program holds, how many
programs there are."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from archc.backends.eager.scope import Scope
from archc.backends.triton.function import TORCH
from archc.backends.triton.gluon_columns import SUFFIX, to_gluon_columns
from archc.backends.triton.program_launch import (
    ProgramLaunch,
    add_gluon,
    add_program,
    launch_program,
)
from archc.backends.triton.schedule import Schedule
from archc.backends.writer import Writer

from archc.dims import Axis
from archc.ir import layer as ir
from archc.ir.chunk import final, start
from archc.ir.graph import Graph, Node, Type
from archc.ir.kernel import Kernel
from archc.ir.refusal import Refusal
from archc.lowering.one_token import OneToken
from archc.lowering.steps import BLOCK, INDICES, Stepping, held_by, stepping
from archc.tile import language as tile
from archc.tile.given import given_names

LOCALS = (
    "part", "numbers", "weights", "moving", "in_turn", "warps", "spread", "rows", "splits",
    "share", "exchange", "counter", "options",
)  # fmt: skip
"""Names of numbers that a launch needs."""


@dataclass(frozen=True)
class Given:
    """The tensors of a launch, as they are written: captures, states before and after, results, all
    contiguous, but that rows of pools may lie apart. `indices`: which rows of these. `data`: the
    dtype of the products. `told`: the name of what a launch returns."""

    captures: Mapping[str, str]
    before: Mapping[str, str]
    after: Mapping[str, str]
    results: Mapping[str, str]
    data: str
    indices: tuple[str, ...] = ()
    told: str = ""

    @property
    def tensors(self) -> dict[str, str]:
        """Those that the kernel is given, by its names for them: all but results."""
        before = {start(state): text for state, text in self.before.items()}
        after = {final(state): text for state, text in self.after.items()}
        return {**self.captures, **before, **after}


@dataclass(frozen=True, eq=False)
class Walk:
    """A recurrence by itself as a graph, the kernel that walks its tokens, and its program."""

    graph: Graph
    kernel: Kernel
    made: Stepping


def walk_of(
    schedule: Schedule, graph: Graph, node: Node, name: str, results: Collection[str],
    numbers: Collection[str], pools: bool,
) -> Walk | Refusal:  # fmt: skip
    """The program of one recurrence `node` of a graph, if it is one. `numbers`: captures that are
    given by value; `pools`: its states are in rows of pools."""
    own = schedule.tokenwise(graph, node, results)
    kernel = schedule.steps(own, name, not pools)
    made = stepping(kernel, numbers, pools)
    return made if isinstance(made, Refusal) else Walk(own, kernel, made)


def alone_of(walk: Walk) -> Walk | None:
    """The program for one token alone of a recurrence that solves a system with its state."""
    kernel = walk.kernel
    op: ir.Recurrence = kernel.graph[kernel.walk or 0].op
    plain = kernel.split is None and kernel.rows is None and not kernel.summed
    if not plain or not any(isinstance(node.op, ir.Solve) for node in op.body):
        return None
    own = replace(kernel, name=f"{kernel.name}_alone")
    made = stepping(own, [*walk.made.numbers], True, OneToken)
    return None if isinstance(made, Refusal) else Walk(walk.graph, own, made)


class StepLaunch:
    """The program of a recurrence, and the lines that launch it from `body`."""

    def __init__(self, body: Scope, op: ir.Recurrence, walk: Walk):
        self.body, self.op, self.title = body, op, ""
        self.graph, self.kernel, self.made = walk.graph, walk.kernel, walk.made

    def write_kernel(self) -> None:
        """Append the kernel to the file."""
        self.title = add_program(self.body.file, self.made.program)

    def type_of(self, result: str) -> Type:
        """The type of a result."""
        return self.graph[self.graph.outputs[result]].type

    def room(self, result: str, device: str, dtype: str) -> str:
        """New memory for a result; for what each block adds to it, where it is summed over them."""
        type = self.type_of(result)
        shape = [self.body.length(axis).text for axis in type.axes]
        dtype = TORCH.get(type.dtype, dtype)
        if result in self.kernel.summed:
            assert self.kernel.split is not None
            shape.insert(0, f"-(-{self._size(self.kernel.split)} // part)")
            dtype = "torch.float32"
        return f"torch.empty({', '.join(shape)}, device={device}, dtype={dtype})"

    def add_up(self, writer: Writer, result: str, text: str, dtype: str) -> None:
        """The line that adds up what each block has stored of a result that is summed over them."""
        if result in self.kernel.summed:
            cast = "" if dtype == "torch.float32" else f".to({dtype})"
            writer.line(f"{text} = {text}.sum(0){cast}")

    # --- how much a program holds ---

    def _size(self, axis: Axis) -> str:
        return self.body.size(axis.size).text

    def _block(self, length: str) -> str:
        """The length of a block, where the kernel is launched."""
        known = self.made.blocks.get(length)
        return "part" if known is None else f"step_block({self.body.size(known).text})"

    def _tile(self, type: tile.Type) -> list[str]:
        """The lengths of a tile."""
        lengths = (dim.length for dim in type.dims)
        return [str(n) if n.is_Integer else self._block(str(n)) for n in lengths]

    def write_sizes(self, writer: Writer) -> None:
        """The lines that say how many numbers a program holds: of states, in registers; of weights,
        and of what it reads at a token."""
        split, program, held = self.kernel.split, self.made.program, held_by(self.made, self.op)
        if split is not None:
            largest = max(held.states, key=lambda type: len(type.dims))
            rest = [dim for dim in largest.dims if dim.length != BLOCK]
            others = " * ".join(self._tile(tile.Type("f32", tuple(rest)))) or "1"
            dots = any(isinstance(s.op, tile.Dot) for s in tile.statements(program.body))
            programs = " * ".join(self.body.ask(self.body.length(a).text) for a in self.kernel.grid)
            least = 16 if dots else 8
            writer.line(f"part = step_part({self._size(split)}, {others}, {least}, {programs})")
        every = {"numbers": held.states, "weights": held.weights, "moving": held.moving}
        for name, types in every.items():
            writer.line(f"{name} = {total([self._tile(type) for type in types])}")

    # --- the launch ---

    def write(self, writer: Writer, given: Given) -> None:
        """The launch; if pools are written in place, a program does every block of what several
        blocks would write."""
        made, split = self.made, self.kernel.split
        if made.whole_states and split is not None:
            blocks = f"-(-{self._size(split)} // part)"
            writer.line(f"in_turn = {blocks} if {self.shared(given)} else 1")
        most = 16 if self.kernel.rows is None else 8
        writer.line(f"warps = step_warps(numbers + weights // 2, {most})")
        constants = self._constants(given)
        launch = ProgramLaunch(
            self._buffers(given), self._sizes(given), constants, given.told, "warps"
        )
        launch_program(writer, self.title, made.program, launch)

    def _buffers(self, given: Given) -> dict[str, str]:
        """The tensors of a launch, by the names of the program's buffers."""
        buffers, tensors = dict[str, str](), {**given.tensors, **given.results}
        for name, buffer in self.made.tensors.items():
            buffers[buffer.name] = tensors[name]
        return {**buffers, **dict(zip(INDICES, given.indices, strict=False))}

    def _sizes(self, given: Given) -> dict[str, str]:
        """The numbers of a launch."""
        body, made, tensors = self.body, self.made, given.tensors
        found = {"T": body.lengths[self.op.stream.name], "B": body.lengths["batch"]}
        found |= {symbol.name: tensors[name] for name, symbol in made.numbers.items()}
        for name, buffer in made.tensors.items():
            rows = str(buffer.axes[0][1]) if buffer.axes else ""
            if rows not in found and name in tensors:
                found[rows] = f"{tensors[name]}.shape[0]"
        for name in given_names(made.program) & {"T", "B"}:
            body.ask(found[name])
        return {symbol.name: found[symbol.name] for symbol in made.program.sizes}

    def _constants(self, given: Given) -> dict[str, str]:
        """Sizes, blocks, and how exact products are."""
        made, size = self.made, self.body.size
        known = {"IO": given.data, "DOT": f"step_dtype({given.data})", "PRECISION": '"tf32x3"'}
        known |= {"BLOCK": "part", "BLOCKS": "in_turn"}
        known |= {name: size(symbol).text for name, symbol in made.sizes.items()}
        known |= {name: f"step_block({size(length).text})" for name, length in made.blocks.items()}
        return {name: known[name] for name in made.program.constants}

    def in_order(self, given: Given) -> list[str]:
        """The tensors that the kernel is given, in its order, with which rows of pools."""
        known = given.tensors
        return [*(known[name] for name in self.made.tensors if name in known), *given.indices]

    def results_in_order(self, given: Given) -> list[str]:
        """The tensors that the kernel makes, in its order."""
        return [given.results[name] for name in self.made.tensors if name in given.results]

    def shared(self, given: Given) -> str:
        """Whether states after are written over those before, where that decides the launch."""
        if not self.made.whole_states:
            return ""
        pairs = [(given.after[s], given.before[s]) for s in sorted(self.made.whole_states)]
        return " or ".join(f"shares_memory({after}, {old})" for after, old in pairs)


class AloneLaunch(StepLaunch):
    """The same of the program for one token alone."""

    def fits(self) -> str:
        """Whether there is one token, and a thread has room for a column of a state."""
        own = ([a for a in s.axes if a.kind == "dim"] for s in self.op.states)
        matrices = [axes for axes in own if len(axes) > 1 and axes[-2].name not in self.op.heads]
        rows = sorted({f"{self._side(axes[-2])} <= 128" for axes in matrices})
        one = f"{self.body.ask(self.body.lengths[self.op.stream.name])} == 1"
        return " and ".join([one, *rows])

    def _side(self, axis: Axis) -> str:
        return f"step_block({self._size(axis)})"

    def write_kernel(self) -> None:
        """Append the kernel, and that by Gluon if there is one."""
        super().write_kernel()
        self.other = ""
        if not isinstance(to_gluon_columns(self.made.program), Refusal):
            self.other = add_gluon(self.body.file, self.title, to_gluon_columns, SUFFIX)

    def write(self, writer: Writer, given: Given) -> None:
        """The launch, of a thread for each column of the first system."""
        body = self.op.body
        system = next(node for node in body if isinstance(node.op, ir.Solve))
        columns = body[system.operands[0]].type.axis(system.op.col)
        writer.line(f"options = token_options({self._side(columns)})")
        launch = ProgramLaunch(
            self._buffers(given), self._sizes(given), self._constants(given), given.told,
            options="options",
        )  # fmt: skip
        title = self.title
        if self.other:
            states = ", ".join([*given.before.values(), *given.after.values()])
            title = f"({self.other} if are_in_columns({states}) else {title})"
        launch_program(writer, title, self.made.program, launch)


def total(tiles: list[list[str]]) -> str:
    """How many numbers tiles have together: equal ones are counted."""
    counts: dict[str, int] = {}
    for lengths in tiles:
        text = " * ".join(lengths) or "1"
        counts[text] = counts.get(text, 0) + 1
    return " + ".join(f"{n} * {text}" if n > 1 else text for text, n in counts.items()) or "0"
