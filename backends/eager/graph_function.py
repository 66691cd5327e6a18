"""A graph becomes a function: its inputs are the arguments, its outputs what is returned."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import sympy
from archc.backends.eager.chunk_rows import tensor
from archc.backends.eager.region import argument_list, extra_arguments, graph_scope
from archc.backends.eager.scope import Scope, write_sizes
from archc.backends.eager.value import KIND_OF, NUMBER, Value
from archc.backends.expression import POWER, UNARY, Text
from archc.backends.index import permuted
from archc.backends.lines import words
from archc.backends.writer import Names, Writer, identifier

from archc.dims import Axis
from archc.ir import layer as ir
from archc.ir.chunk import CHUNK
from archc.ir.graph import Graph
from archc.ir.value_names import primal
from archc.source import Span


class GraphFunction:
    """One function under construction.

    `given` says how inputs come (layout and kind, by name) where that is not as their types say;
    `order` in what order they are the arguments; `reals` are those that are tensors of real
    numbers. The last argument is the length of a chunk; `packed` says whether one with the borders
    of packed sequences stands before it, `alone` why it cannot, `gaps` which values are then read
    also at chunks that nothing is written to. `span` is where the spec has what it is derived from.
    """

    locals: tuple[str, ...] = ()
    """Names that no argument can have."""
    last: tuple[str, ...] = ("chunk",)
    """The last arguments of the function."""
    wrapper = "without_autocast"
    """The decorator of the function."""

    packed, alone = False, ""
    keeps = False
    """Whether an argument says if what a gradient needs is wanted."""
    gaps: frozenset[int] = frozenset()
    span: Span | None = None

    def __init__(
        self, scope: Scope, graph: Graph, name: str, given: Mapping[str, Value],
        order: Sequence[str], stream: Axis,
    ):  # fmt: skip
        self.scope, self.graph, self.given, self.name = scope, graph, given, name
        self.stream, self.absent = stream, set[str]()
        found = {node.op.name: node for node in graph if isinstance(node.op, ir.Input)}
        self.inputs = {input: found[input] for input in [*order, *found] if input in found}
        names = Names(self.locals)
        self.arguments = {input: names.fresh(self.called(input)) for input in self.inputs}
        axes = {
            self.arguments[input]: [node.type.axis(axis) for axis in self.layout(input)]
            for input, node in self.inputs.items()
        }
        self.reals = {
            n: argument for n, argument in self.arguments.items()
            if found[n].type.dtype == "real" and not self.is_number(n)
        }  # fmt: skip
        first, *_ = self.reals.values()
        self.body = graph_scope(scope, graph, first, axes, stream.name)
        self._tell_batch()
        self.body.chunk, self.body.region, self.body.flow = "chunk", f"{name}_scan", scope.flow
        self.body.sizes |= {str(CHUNK): "chunk", str(stream.size): self.body.lengths[stream.name]}
        self.counts = self._count_chunks(axis for node in graph for axis in node.type.axes)
        for input, node in self.inputs.items():
            kind = NUMBER if self.is_number(input) else KIND_OF[node.type.dtype]
            text = Text(self.arguments[input])
            self.body.values[node.id] = Value(text, self.layout(input), kind)

    def called(self, input: str) -> str:
        """The wished name of an argument."""
        return plain(input)

    def _tell_batch(self) -> None:
        """Read the length of the batch off what runs along tokens: of packed sequences that is one
        row, and states have more."""
        batch, streams = self.body.lengths["batch"], set(self.body.lengths) - {"batch"}
        along = {a for n, a in self.arguments.items() if streams & {*self.layout(n)}}
        told = self.body.sources.get(batch, [])
        self.body.sources[batch] = [each for each in told if each[0] in along] or told

    @property
    def options(self) -> list[str]:
        """The last arguments."""
        return [*["cu_seqlens"] * self.packed, *self.last]

    def layout(self, name: str) -> tuple[str, ...]:
        """The order of an argument's dims."""
        known = self.given.get(name)
        return self.inputs[name].type.names if known is None else known.layout

    def is_number(self, name: str) -> bool:
        """Whether an argument is a Python number."""
        return name in self.given and self.given[name].kind == NUMBER

    def _count_chunks(self, axes: Iterable[Axis]) -> dict[str, sympy.Expr]:
        """How many chunks there are, by a name of its own: no argument's shape need tell."""
        body, counts = self.body, {}
        for axis in axes:
            chunks = axis.kind == "stream" and axis.size.has(sympy.ceiling)
            if chunks and axis.name not in body.lengths:
                body.lengths[axis.name] = body.names.fresh(axis.name)
                counts[body.lengths[axis.name]] = axis.size
        return counts

    def write(self, outputs: Mapping[str, Sequence[str]], title: str) -> dict[str, str]:
        """Append the function to the file: it returns the outputs with these layouts.

        What it needs besides its arguments: its name here, and how its caller has it.
        """
        return self.define(title, self.filled(outputs))

    def filled(self, outputs: Mapping[str, Sequence[str]]) -> list[str]:
        """Write the lines of the body; the outputs with these layouts."""
        self.returned = outputs
        self.fill()
        return [self._output(name, layout) for name, layout in outputs.items()]

    def define(self, title: str, made: list[str]) -> dict[str, str]:
        """Append the function, whose body is there, to the file."""
        body, writer = self.body, Writer()
        head = self._head(words([*body.writer.lines, *made]))
        body.asked.discard("chunk")
        self.extra = dict(zip(*extra_arguments(self.scope, body), strict=True))
        writer.line(f"@{self.wrapper}")
        every = [*self.arguments.values(), *self.extra, *self.options]
        shapes = {argument: self.layout(name) for name, argument in self.arguments.items()}
        writer.define(self.name, every, [title, argument_list(shapes)])
        write_sizes(writer, body)
        writer.include([*head, *body.head])
        writer.include(body.writer.lines)
        writer.returns(made)
        self.scope.file.sections.append(writer.text())
        return self.extra

    def fill(self) -> None:
        """The lines of the body."""
        self.body.statements()

    def _output(self, name: str, layout: Sequence[str]) -> str:
        """An output in that layout; None for a gradient that is 0."""
        node = self.graph[self.graph.outputs[name]]
        if primal(name) is not None and _is_zero(self.graph, node.id):
            self.absent.add(name)
            return "None"
        value = self.body.value(node.id)
        if value.kind != NUMBER and set(value.layout) == set(layout):
            return permuted(value.text, value.layout, layout).text
        return tensor(self.body, node.id).text.text

    def _head(self, used: Collection[str]) -> list[str]:
        """The lines that count the chunks, where something asks for it."""
        lines = []
        for name, size in self.counts.items():
            self.body.asked.discard(name)
            if name in used:
                (inner,) = size.atoms(sympy.ceiling)
                top, bottom = sympy.fraction(sympy.together(inner.args[0]))
                top, bottom = self.body.size(top), self.body.size(bottom)
                lines.append(f"{name} = -(-{top.at(UNARY)} // {bottom.at(POWER)})")
        return lines


def _is_zero(graph: Graph, id: int) -> bool:
    """Whether a value is the number 0, however it is written: by kernels or in PyTorch."""
    node = graph[id]
    while isinstance(node.op, ir.Elementwise) and node.op.fn == "real":
        node = graph[node.operands[0]]
    return isinstance(node.op, ir.Constant) and node.op.value == 0


def plain(name: str) -> str:
    """`S_0`, `d_S_T`: how a value is written whose name is `S[0]`, `d.S[T]`."""
    return identifier(name)
