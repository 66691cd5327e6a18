"""A recurrence becomes a function that walks its tokens by one launch, on pools of states."""

from __future__ import annotations

from collections.abc import Mapping

from archc.backends.eager.fold import FoldFunction
from archc.backends.eager.graph_function import GraphFunction
from archc.backends.eager.region import argument_list, extra_arguments
from archc.backends.eager.scope import write_sizes
from archc.backends.eager.value import DATA, Value
from archc.backends.expression import Text
from archc.backends.triton.function import TORCH
from archc.backends.triton.lines import NotInKernel
from archc.backends.triton.naming import size_name
from archc.backends.triton.schedule import Schedule
from archc.backends.triton.step_ops import STEP_OPS
from archc.backends.triton.step_text import INDICES, step_text, symbols_of
from archc.backends.triton.steps import steps_source
from archc.backends.writer import Writer

from archc.dims import Axis
from archc.ir.chunk import final, start
from archc.ir.graph import Graph, Type

PIECES = {
    "step_block", "step_part", "step_warps", "by_steps", "step_fits", "check_pool", "check_learns",
    "step_numbers", "shares_memory", "rows_of_pool", "rows_to_pool", "kernel",
}  # fmt: skip

DOC = """`index` [B]: the row of each sequence in the pools of states, row b if it is left out; no
state is read or written where it is negative. States after the last token take the place of those
before the first; or they go into the rows `index_after` of the pools `into`, one for each state.
Nothing here waits for the GPU. There is no gradient."""


class StepFunction(GraphFunction):
    """One function under construction, for the recurrence that `fold` is the eager loop of."""

    locals = ("index", "into", "index_after", "part", "numbers", "weights", "in_turn")

    def __init__(self, fold: FoldFunction, eager: Mapping[str, str], schedule: Schedule):
        self.fold, self.eager = fold, eager
        graph: Graph = schedule.tokenwise(fold.scope.graph, fold.node, fold.results)
        given = dict(fold.values)
        for state in fold.op.states:
            given[start(state.name)] = Value(Text(""), tuple(a.name for a in state.axes), DATA)
        order = [*fold.arguments, *map(start, fold.states)]
        name = fold.scope.file.names.fresh(f"{fold.name.removesuffix('_steps')}_decode")
        super().__init__(fold.scope, graph, name, given, order, fold.op.stream)
        self.states = {state: self.arguments[start(state)] for state in fold.states}
        self.after = {state: self.body.names.fresh(f"{state}_after") for state in fold.states}
        numbers = [name for name in self.inputs if self.is_number(name)]
        kernel = schedule.steps(graph, f"{self.name.removesuffix('_decode')}_step")
        if not fold.tokens:
            raise NotInKernel("no argument tells how many tokens there are")
        self.made = steps_source(kernel, STEP_OPS, fold.op.stream.name, numbers)
        for places in self.body.sources.values():
            places[:] = [(a, at) for a, at in places if at or a not in self.states.values()]

    def called(self, input: str) -> str:
        """A state has the name that it has in the spec."""
        return super().called(input.removesuffix("[0]"))

    # --- the text ---

    def write_steps(self) -> dict[str, str]:
        """Append the kernel and its function to the file; what the function needs besides captures
        and states: its name there, and how its caller has it."""
        file, writer, body = self.scope.file, Writer(), self.body
        file.kernels |= {*PIECES, *self.made.pieces}
        title = file.names.fresh(self.made.kernel.name)
        file.sections.append(step_text(self.made, title))
        lines = Writer()
        self._lines(lines, title)
        self.extra = {**dict(zip(*extra_arguments(self.scope, body), strict=True)), **self.eager}
        given = [*self.arguments.values(), *self.extra]
        options = ["index=None", "into=None", "index_after=None"]
        writer.call(f"def {self.name}(", [*given, *options], "):")
        writer.depth += 1
        writer.docstring(self._doc())
        write_sizes(writer, body)
        writer.include(lines.lines)
        file.sections.append(writer.text())
        self._note()
        return self.extra

    def _note(self) -> None:
        """What the head of the file says of it."""
        self.scope.file.notes.append(f"    {self.name}: 1 kernel, on pools of states")

    def _doc(self) -> list[str]:
        results = ", ".join(f"`{name}`" for name in self.fold.results)
        states = ", ".join(f"`{name}`" for name in self.states)
        what = f"{results} at every token, and {states}" if results else states
        shapes = {self.arguments[name]: self.layout(name) for name in self.fold.arguments}
        for state in self.fold.op.states:
            shapes[self.states[state.name]] = ("rows", *(a.name for a in state.axes[1:]))
        first = f"{what} after the last, for few tokens, as in generation: one launch."
        return [first, argument_list(shapes), " ".join(DOC.split("\n"))]

    def _lines(self, writer: Writer, title: str) -> None:
        """Checks, the choice of the eager loop, and the launch."""
        states, after = list(self.states.values()), list(self.after.values())
        comma = "," * (len(after) == 1)
        like = self.arguments[self.fold.tokens[0]]
        with writer.block("if into is None:"):
            writer.line(f"into = ({', '.join(states)}{comma})")
            writer.line("index_after = index if index_after is None else index_after")
        writer.line(f"({after[0]},) = into" if comma else f"{', '.join(after)} = into")
        for pool, index in [*((s, "index") for s in states), *((s, "index_after") for s in after)]:
            writer.line(f'check_pool("{self.name}", {pool}, {like}, {index})')
        real = self._real()
        writer.call("check_learns(", [f'"{self.name}"', *real, *states, *after], ")")
        self._blocks(writer)
        fits = ", ".join([*real, *states, *after])
        room = f"step_fits(numbers, weights * {real[0]}.itemsize)"
        with writer.block(f"if not (by_steps({fits}) and {room}):"):
            self._by_the_loop(writer)
        self._launch(writer, title, real[0])
        results = [self._result_name(name) for name in self.fold.results]
        writer.line(f"return {', '.join([*results, *after])}")

    def _real(self) -> list[str]:
        kinds = {name: self.graph[node.id].type.dtype for name, node in self.inputs.items()}
        return [
            self.arguments[name] for name in self.fold.arguments
            if name in self.inputs and kinds[name] == "real" and not self.is_number(name)
        ]  # fmt: skip

    def _by_the_loop(self, writer: Writer) -> None:
        """The eager loop, on the rows of the pools."""
        batch = self.body.ask(self.body.lengths["batch"])
        rows = [f"rows_of_pool({s}, index, {batch})" for s in self.states.values()]
        made = [self._result_name(name) for name in self.fold.results]
        moved = [f"{name}_moved" for name in self.states]
        given = [self.arguments[name] for name in self.fold.arguments]
        left = ", ".join([*made, *moved])
        writer.call(f"{left} = {self.fold.name}(", [*given, *rows, *self.eager], ")")
        for name, pool in zip(moved, self.after.values(), strict=True):
            writer.line(f"rows_to_pool({pool}, index_after, {name})")
        writer.line(f"return {', '.join([*made, *self.after.values()])}")

    def _result_name(self, name: str) -> str:
        known = {*self.arguments.values(), *self.after.values()}
        text = super().called(name)
        return f"{text}_all" if text in known else text

    # --- the launch ---

    def _size(self, axis: Axis) -> str:
        return self.body.size(axis.size).text

    def _tile(self, axes: tuple[Axis, ...]) -> list[str]:
        """The lengths of the tile of a value, without those of which a program has one index."""
        grid = {axis.name for axis in self.made.kernel.grid}
        split, rows = self.made.kernel.split, self.made.kernel.rows
        found = ["16"] if rows is not None and rows in axes else []
        for axis in axes:
            if split is not None and axis.name == split.name:
                found.append("part")
            elif axis.name not in grid and axis.kind == "dim":
                found.append(f"step_block({self._size(axis)})")
        return found

    def _blocks(self, writer: Writer) -> None:
        """The lines that say how much a program holds."""
        kernel, op = self.made.kernel, self.fold.op
        if kernel.split is not None:
            largest = max(op.states, key=lambda state: len(state.axes))
            rest = tuple(axis for axis in largest.axes if axis.name != kernel.split.name)
            least = 16 if any("tl.dot" in line for line in self.made.writer.lines) else 8
            others = " * ".join(self._tile(rest)) or "1"
            writer.line(f"part = step_part({self._size(kernel.split)}, {others}, {least})")
        held = [" * ".join(self._tile(state.axes)) or "1" for state in op.states]
        writer.line(f"numbers = {' + '.join(held)}")
        inputs = [n for n in self.graph if n.id in self.made.fold.operands[: len(op.captures)]]
        shared = [n.type.axes for n in inputs if op.stream.name not in n.type.names]
        weights = [" * ".join(tile) for tile in map(self._tile, shared) if len(tile) > 1]
        writer.line(f"weights = {' + '.join(weights) or '0'}")

    def _launch(self, writer: Writer, title: str, data: str) -> None:
        """Room for the results, and the launch."""
        made, body, rows = self.made, self.body, self.made.kernel.rows
        tensors = {name: self.arguments[name] for name in self.inputs}
        for name, id in made.kernel.stores.items():
            tensors[name] = self._result_name(name)
            writer.line(f"{tensors[name]} = {self._room(self.graph[id].type, data)}")
        tensors |= {final(state): name for state, name in self.after.items()}
        given = [self._given(name, tensors[name]) for name in made.arguments]
        given += [f"{name}, 1 if {name} is None else {name}.stride(0)" for name in INDICES]
        counts = [self.stream.name, "batch"][: 1 if rows is None else 2]
        given += [body.ask(body.lengths[name]) for name in counts]
        programs = self._programs(writer)
        fixed = [*self._fixed(), f"**step_numbers({data}.dtype)"]
        fixed.append(f"num_warps=step_warps(numbers + weights // 2, {16 if rows is None else 8})")
        writer.call(f"{title}[({' * '.join(programs)},)](", [*given, *fixed], ")")

    def _room(self, type: Type, data: str) -> str:
        """New memory for a result: as narrow as the data."""
        dtype = TORCH.get(type.dtype, f"{data}.dtype")
        shape = ", ".join(self.body.length(axis).text for axis in type.axes)
        return f"torch.empty({shape}, device={data}.device, dtype={dtype})"

    def _fixed(self) -> list[str]:
        """Sizes and blocks, by name."""
        made, size = self.made, self.body.size
        fixed = [f"{size_name(symbol)}={size(symbol).text}" for symbol in symbols_of(made)]
        known = {"ROWS": "16", "PART": "part"}
        for block, length in sorted(made.blocks.items(), key=lambda item: item[0]):
            fixed.append(f"{block}={known.get(block) or f'step_block({size(length).text})'}")
        return [*fixed, "BLOCKS=in_turn"] if made.blocks_in_turn else fixed

    def _programs(self, writer: Writer) -> list[str]:
        """How many programs there are; if pools are written in place, one does every block of what
        several blocks would write."""
        made, kernel = self.made, self.made.kernel
        programs = [self.body.length(axis).text for axis in kernel.grid]
        if kernel.rows is not None:
            programs[0] = f"triton.cdiv({programs[0]}, 16)"
        if kernel.split is None:
            return programs
        blocks = f"triton.cdiv({self._size(kernel.split)}, part)"
        if made.blocks_in_turn:
            pairs = [(self.after[s], self.states[s]) for s in sorted(made.whole_states)]
            same = " or ".join(f"shares_memory({after}, {old})" for after, old in pairs)
            writer.line(f"in_turn = {blocks} if {same} else 1")
            blocks = f"triton.cdiv({blocks}, in_turn)"
        return [*programs, blocks]

    def _given(self, name: str, text: str) -> str:
        """A tensor and its strides along the axes of its type; 0 along those it lacks."""
        if name in self.made.numbers:
            return text
        names = self.made.arguments[name].type.names
        layout = self.layout(name) if name in self.inputs else names
        if layout == names:
            return f"{text}, *{text}.stride()"
        places = [layout.index(n) if n in layout else None for n in names]
        return ", ".join([text, *("0" if at is None else f"{text}.stride({at})" for at in places)])
