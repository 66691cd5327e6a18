"""A recurrence becomes a function that walks its tokens by one launch, on pools of states."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from archc.backends.eager.graph_function import GraphFunction
from archc.backends.eager.recurrence import RecurrenceFunction
from archc.backends.eager.region import argument_list, extra_arguments
from archc.backends.eager.required import conditions, told_length
from archc.backends.eager.scope import Scope, write_sizes
from archc.backends.eager.shape_checks import Shapes, shapes_of
from archc.backends.eager.value import DATA, NUMBER, Value
from archc.backends.expression import Text
from archc.backends.triton.dense import dense, laid_out
from archc.backends.triton.grid_launch import GridLaunch, grid_launch
from archc.backends.triton.schedule import Schedule
from archc.backends.triton.step_gradient import StepGradient, step_gradient
from archc.backends.triton.step_launch import (
    LOCALS,
    AloneLaunch,
    Given,
    StepLaunch,
    Walk,
    alone_of,
    walk_of,
)
from archc.backends.writer import Writer, in_tuple, quoted

from archc.dims import Axis
from archc.ir.chunk import start
from archc.ir.refusal import Refusal
from archc.lowering.steps import INDICES

DOC = """`index` [B]: the row of each sequence in the pools of states, row b if it is left out; no
state is read or written where it is negative. States after the last token take the place of those
before the first; or they go into the rows `index_after` of the pools `into`, one for each state.
Nothing here waits for the GPU: that indices are below the number of rows, and that no two sequences
are written into one row, is not looked at. There is no gradient."""


class Again(GraphFunction):
    """The arguments, in a scope that nothing is asked of yet."""

    locals = ("index", "into", "index_after", "given", "same", "launched", *LOCALS)

    def called(self, input: str) -> str:
        """A state has the name that it has in the spec."""
        return super().called(input.removesuffix("[0]"))


def step_function(
    recurrence: RecurrenceFunction,
    eager: Mapping[str, str],
    schedule: Schedule,
    ops: Callable[..., Any],
) -> StepFunction | str:
    """The function for a recurrence whose eager loop is given, or why there is none."""
    if not recurrence.tokens:
        return "no argument tells how many tokens there are"
    home, title = recurrence.scope.graph, recurrence.title
    numbers = [name for name, value in recurrence.values.items() if value.kind == NUMBER]
    walk = walk_of(
        schedule, home, recurrence.node, f"{title}_step", recurrence.results, numbers, True
    )
    if isinstance(walk, Refusal):
        return walk.reason
    return StepFunction(recurrence, eager, schedule, ops, walk)


class StepFunction(Again):
    """One function under construction, for a recurrence whose eager loop is given."""

    once: Any = None
    """Its op, where torch compiles and no chunked form has one."""

    def __init__(
        self, recurrence: RecurrenceFunction, eager: Mapping[str, str], schedule: Schedule,
        ops: Callable[..., Any], walk: Walk,
    ):  # fmt: skip
        self.recurrence, self.eager, self.schedule = recurrence, eager, schedule
        given = dict(recurrence.values)
        for state in recurrence.op.states:
            given[start(state.name)] = Value(Text(""), tuple(a.name for a in state.axes), DATA)
        order = [*recurrence.arguments, *map(start, recurrence.states)]
        name = recurrence.scope.file.names.fresh(f"{recurrence.title}_decode")
        super().__init__(recurrence.scope, walk.graph, name, given, order, recurrence.op.stream)
        self.states = {state: self.arguments[start(state)] for state in recurrence.states}
        self.after = {state: self.body.names.fresh(f"{state}_after") for state in recurrence.states}
        self.launch = StepLaunch(self.body, recurrence.op, walk)
        alone = alone_of(walk)
        self.alone = None if alone is None else AloneLaunch(self.body, recurrence.op, alone)
        numbers = [name for name, value in recurrence.values.items() if value.kind == NUMBER]
        self.spread = grid_launch(self.body, recurrence.op, walk, numbers, True)
        self.training = self._gradient(schedule, ops)
        self._told_by_tokens(self.body)

    def _told_by_tokens(self, body: Scope) -> None:
        """A pool has other rows than the batch."""
        for places in body.sources.values():
            places[:] = [(a, at) for a, at in places if at or a not in self.states.values()]

    def _shapes(self) -> Shapes:
        """The shapes that its arguments must have."""
        form = (self.scope, self.graph, self.name, self.given, [*self.inputs], self.stream)
        body = Again(*form).body
        self._told_by_tokens(body)
        axes = {
            a: [self.inputs[n].type.axis(each) for each in self.layout(n)]
            for n, a in self.arguments.items() if not self.is_number(n)
        }  # fmt: skip

        def known(argument: str, axis: Axis, streams: bool) -> str:
            if axis.kind == "batch" and argument in self.states.values():
                return ""
            return told_length(body, axis)

        return shapes_of(axes, known, conditions(body, self.scope.needs))

    def _gradient(self, schedule: Schedule, ops: Callable[..., Any]) -> StepGradient | None:
        """The functions for what learns, where there is no chunked form."""
        if self.recurrence.op.chunked is not None:
            return None
        made = step_gradient(self.recurrence, schedule, ops)
        if isinstance(made, StepGradient):
            return made
        self.scope.file.refused.append(f"    the gradient of {self.recurrence.name}: {made}")
        return None

    # --- the text ---

    def write_steps(self) -> dict[str, str]:
        """Append the kernel and its function to the file; what the function needs besides captures
        and states: its name there, and how its caller has it."""
        file, writer, body = self.scope.file, Writer(), self.body
        self.launch.write_kernel()
        if self.alone is not None:
            self.alone.write_kernel()
        if self.spread is not None:
            self.spread.write_kernel()
        lines = Writer()
        self._lines(lines)
        self.extra = {**dict(zip(*extra_arguments(self.scope, body), strict=True)), **self.eager}
        writes = self._writes()
        given = [*self.arguments.values(), *self.extra]
        options = ["index=None", "into=None", "index_after=None"]
        writer.define(self.name, [*given, *options], self._doc())
        self._enter(writer)
        like = self._again(writer, writes)
        self._refuse(writer)
        write_sizes(writer, body)
        writer.include(lines.lines)
        writer.line(f"remember_launch({self.launch.title}, launched, {like})")
        writer.line(f"return {', '.join([*writes.results.values(), *self.after.values()])}")
        file.sections.append(writer.text())
        self._note()
        if self.training is not None:
            self.training.write()
            self.extra |= self.training.extra
        return self.extra

    def in_a_graph(self) -> str:
        """Whether torch compiles for any number of tokens; "" where there is no op for that."""
        return "" if self.training is None else f"in_a_graph({self._count()})"

    def _count(self) -> str:
        """How many tokens there are, as an expression."""
        first = self.recurrence.tokens[0]
        place = self.recurrence.values[first].layout.index(self.stream.name)
        return f"{self.recurrence.arguments[first]}.shape[{place}]"

    def write_training(self, writer: Writer) -> None:
        """The lines for what learns, if kernels walk its tokens too: where a program has room."""
        if self.training is None:
            return
        ops, names = self.training.ops, self.training.inputs
        tensors = ", ".join(names[n] for n in ops.forward.inputs)
        fits = f"{ops.forward.name}_fits({tensors}) or by_graphs({self._count()}, {tensors})"
        with writer.block(f"if {self.in_a_graph()} or {fits}:"):
            count = len(self.training.outputs)
            self._spans(writer, f"{ops.name}({', '.join(ops.given)})[:{count}]")
            writer.call(f"return {ops.name}(", ops.given, f")[:{count}]")
        ops.refuse(writer)

    def _spans(self, writer: Writer, call: str) -> None:
        """The lines that learn from spans of tokens, each by a call, where states are matrices:
        those before every token may be more than all else. In a graph of any number of tokens they
        are kept, and nothing is asked of that number."""
        recurrence = self.recurrence
        if not self.schedule.is_checkpointed(recurrence.op):
            return
        tokens = [recurrence.arguments[n] for n in recurrence.tokens]
        states = [*recurrence.states.values()]
        count = f"{tokens[0]}.shape[1]"
        numbers = " + ".join(f"{state}.numel()" for state in states)
        span = recurrence.body.names.fresh("span")
        with writer.block("if not torch.compiler.is_compiling():"):
            writer.line(f"{span} = tokens_between({count}, {numbers})")
            with writer.block(f"if {span} < {count}:"):
                run = f"lambda {', '.join([*tokens, *states])}: {call}"
                given = [run, span, f"[{', '.join(tokens)}]", f"[{', '.join(states)}]"]
                writer.call(
                    "return checkpointed(", [*given, *["reverse=True"] * recurrence.op.reverse], ")"
                )

    def _note(self) -> None:
        """Note this function at the head of the file."""
        room = ", where its weights have room on chip" if self.launch.kernel.rows else ""
        self.scope.file.notes.append(f"    {self.name}: 1 kernel, on pools of states{room}")

    def _doc(self) -> list[str]:
        results = ", ".join(f"`{name}`" for name in self.recurrence.results)
        states = ", ".join(f"`{name}`" for name in self.states)
        what = f"{results} at every token, and {states}" if results else states
        shapes = self._layouts()
        first = f"{what} after the last, for few tokens, as in generation: one launch."
        return [first, argument_list(shapes), " ".join(DOC.split("\n"))]

    def _layouts(self) -> dict[str, tuple[str, ...]]:
        """How arguments are laid out."""
        shapes = {
            self.arguments[name]: tuple(self.layout(name)) for name in self.recurrence.arguments
        }
        for state in self.recurrence.op.states:
            shapes[self.states[state.name]] = ("rows", *(a.name for a in state.axes[1:]))
        return shapes

    def _enter(self, writer: Writer) -> None:
        """Where states go."""
        given = [*self._pools(), "index", "into", "index_after"]
        left = f"{in_tuple(self.after.values())}, index_after"
        writer.call(f"{left} = pools_after(", given, ")")

    def _pools(self) -> list[str]:
        """The arguments that tell a function of the states before."""
        states = self.states.values()
        return [quoted(self.name), quoted(", ".join(states)), in_tuple(states)]

    def _again(self, writer: Writer, writes: Given) -> str:
        """The lines that launch what was launched of tensors like these; what such a launch is
        looked up by."""
        writer.call("given = (", self.launch.in_order(writes), ")")
        numbers = [a for n, a in self.arguments.items() if self.is_number(n)]
        rest, shared = [*numbers, *self.extra], self.launch.shared(writes)
        if shared:
            writer.line(f"same = {shared}")
            rest.append("same")
        like = ", ".join(["given", *rest])
        writer.line(f"made = launched_again({self.launch.title}, {like})")
        results = [*writes.results.values()]
        stored = self.launch.results_in_order(writes)
        with writer.block("if made is not None:"):
            if stored != results:
                writer.line(f"{', '.join(stored)} = made")
            made = ["*made"] if stored == results else results
            writer.line(f"return {', '.join([*made, *self.after.values()])}")
        return like

    def _tensors(self) -> dict[str, tuple[str, ...]]:
        """How the arguments that are tensors are laid out."""
        numbers = {self.arguments[n] for n in self.inputs if self.is_number(n)}
        return {a: layout for a, layout in self._layouts().items() if a not in numbers}

    def check_tensors(self, writer: Writer, title: str, tensors: Iterable[str]) -> None:
        """The line of a function of that name that refuses what is no tensor."""
        given = [quoted(title), quoted(" ".join(tensors)), *tensors]
        writer.call("check_tensors(", given, ")")

    def _refuse(self, writer: Writer) -> None:
        """Refuse arguments of another kind or shape."""
        self.check_tensors(writer, self.name, self._tensors())
        shapes = self._shapes()
        before, after = f"check_shapes({quoted(self.name)}, ", f", {in_tuple(shapes.order)})"
        shapes.write(writer, before, after)

    def _lines(self, writer: Writer) -> None:
        """Checks, the choice of the eager loop, and the launch."""
        states, after = list(self.states.values()), list(self.after.values())
        like = self.arguments[self.recurrence.tokens[0]]
        given = [*self._pools(), "index", in_tuple(after), "index_after", like]
        writer.call("check_pools(", given, ")")
        real = self._real()
        writer.call("check_learns(", [f'"{self.name}"', *real, *states, *after], ")")
        self.launch.write_sizes(writer)
        fits = ", ".join([*real, *states, *after])
        data = self._data()
        room = f"step_fits(numbers, weights, moving, {data}.dtype)"
        if self.spread is None:
            with writer.block(f"if not (by_steps({fits}) and {room}):"):
                self._by_the_loop(writer)
        else:
            with writer.block(f"if not by_steps({fits}):"):
                self._by_the_loop(writer)
            with writer.block(f"if not {room}:"):
                self._on_the_grid(writer, self.spread)
        self._in_rows(writer)
        writes = self._writes()
        self._rooms(writer, writes)
        if self.alone is None:
            self.launch.write(writer, writes)
            return
        with writer.block(f"if {self.alone.fits()}:"):
            self.alone.write(writer, writes)
        with writer.block("else:"):
            self.launch.write(writer, writes)

    def _in_rows(self, writer: Writer) -> None:
        """The lines that copy what is not contiguous, as the kernel reads it."""
        named = {n: self.arguments[n] for n in self.recurrence.arguments if not self.is_number(n)}
        for name, text in named.items():
            have, type = self.layout(name), self.inputs[name].type
            if have != type.names:
                writer.line(f"{text} = {laid_out(self.body, Text(text), have, type)}")
        dense(writer, [*named.values(), *INDICES])
        for place, after in enumerate(self.after.values()):
            writer.line(f'check_dense({quoted(self.name)}, "into[{place}]", {after})')
        for state in self.states.values():
            writer.line(f"{state} = dense_rows({state})")

    def _rooms(self, writer: Writer, writes: Given) -> None:
        """New memory for results."""
        data = self._data()
        for name, text in writes.results.items():
            room = self.launch.room(name, f"{data}.device", f"{data}.dtype")
            writer.line(f"{text} = {room}")

    def _on_the_grid(self, writer: Writer, spread: GridLaunch) -> None:
        """The lines that spread it over the GPU, or take the eager loop where that cannot be."""
        data, writes = self._data(), self._writes()
        self._in_rows(writer)
        writer.line(f"spread = {spread.split(f'{data}.dtype', f'{data}.device')}")
        with writer.block("if spread is None:"):
            self._by_the_loop(writer)
        self._rooms(writer, writes)
        spread.write(writer, replace(writes, told=""))
        after = self.after.values()
        writer.line(f"return {', '.join([*writes.results.values(), *after])}")

    def _writes(self) -> Given:
        """The arguments of the kernel."""
        results = {name: self._result_name(name) for name in self.recurrence.results}
        return Given(
            self.arguments, self.states, self.after, results, f"{self._data()}.dtype", INDICES,
            "launched",
        )  # fmt: skip

    def _data(self) -> str:
        """The tensor whose dtype results have: the first real one, or, of positions alone, a
        state."""
        return [*self._real(), *self.states.values()][0]

    def _real(self) -> list[str]:
        return [text for name, text in self.reals.items() if name in self.recurrence.arguments]

    def _by_the_loop(self, writer: Writer) -> None:
        """The eager loop, on the rows of the pools."""
        batch = self.body.ask(self.body.lengths["batch"])
        rows = [f"rows_of_pool({s}, index, {batch})" for s in self.states.values()]
        made = [self._result_name(name) for name in self.recurrence.results]
        moved = [f"{name}_moved" for name in self.states]
        given = [self.arguments[name] for name in self.recurrence.arguments]
        left = ", ".join([*made, *moved])
        writer.call(f"{left} = {self.recurrence.name}(", [*given, *rows, *self.eager], ")")
        for name, pool in zip(moved, self.after.values(), strict=True):
            writer.line(f"rows_to_pool({pool}, index_after, {name})")
        writer.line(f"return {', '.join([*made, *self.after.values()])}")

    def _result_name(self, name: str) -> str:
        known = {*self.arguments.values(), *self.after.values()}
        text = super().called(name)
        return f"{text}_all" if text in known else text
