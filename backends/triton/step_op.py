"""The launch that walks a few tokens as an op of torch: states go into new memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from archc.backends.eager.graph_function import GraphFunction
from archc.backends.eager.library import op_text
from archc.backends.eager.op import arguments_of
from archc.backends.eager.scope import write_sizes
from archc.backends.triton.step_function import StepFunction
from archc.backends.writer import Writer, in_tuple

if TYPE_CHECKING:
    from archc.backends.eager.chunked import ChunkedFunction
    from archc.backends.triton.step_gradient import StepGradient

DTYPES = {"int": "torch.int32", "bool": "torch.bool"}


class StepOp(GraphFunction):
    """One op under construction, of the function `made` on pools of states."""

    def __init__(self, owner: ChunkedFunction | StepGradient, made: StepFunction):
        fresh = owner.scope.file.names.fresh
        self.owner, self.made, self.op = owner, made, fresh(f"{owner.title}_once_op")
        name, order = fresh(f"{owner.title}_once"), list(made.inputs)
        super().__init__(made.scope, made.graph, name, made.given, order, made.stream)
        self.states = [self.arguments[f"{state}[0]"] for state in owner.states]
        self.every = [*self.arguments.values(), *made.extra]
        self.data, *_ = self.reals.values()

    def call(self, writer: Writer) -> None:
        """The line that calls it, where torch compiles."""
        names = {**self.owner.inputs}
        with writer.block("if torch.compiler.is_compiling():"):
            given = [*(names[name] for name in self.inputs), *self.made.extra]
            writer.call(f"return {self.op}(", given, ")")

    def write(self) -> None:
        """Append all of it to the file."""
        sections = self.scope.file.sections
        sections.append(self._fake())
        made = [*map(self._named, self.owner.results), *(f"{s}_after" for s in self.states)]
        given = arguments_of(self, self.every)
        schema = f"{self.name}({given}) -> ({', '.join(made)})"
        places = ", ".join(str(self.every.index(state)) for state in self.states)
        function = f"as_op(with_new_states({self.made.name}, {places}))"
        functions = [function, f"{self.name}_fake", "no_gradient"]
        sections.append(op_text(self.op, schema, functions))

    def _named(self, result: str) -> str:
        return f"{result}_all" if result in self.every else result

    def _fake(self) -> str:
        made = []
        for name in self.owner.results:
            type = self.graph[self.graph.outputs[name]].type
            shape = in_tuple([self.body.length(axis).text for axis in type.axes])
            dtype = DTYPES.get(type.dtype, f"{self.data}.dtype")
            made.append(f"{self.data}.new_empty({shape}, dtype={dtype})")
        made += [f"{state}.new_empty({state}.shape)" for state in self.states]
        doc = f"What the results of `{self.name}` are like, without their values."
        writer = Writer().define(f"{self.name}_fake", self.every, [doc])
        write_sizes(writer, self.body)
        writer.gives(made)
        return writer.text()
