"""A recurrence in two forms: by steps where tokens are few, by chunks where they are many.

It becomes a function for the steps, one for the chunks, one for their gradient, ops of torch that
tell autograd of it, and the function that chooses between the two.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from archc.backends.eager.graph_function import GraphFunction, plain
from archc.backends.eager.library import Ops
from archc.backends.eager.naming import region_name
from archc.backends.eager.op import lies_packed
from archc.backends.eager.recurrence import RecurrenceFunction
from archc.backends.eager.region import extra_arguments
from archc.backends.eager.scope import Scope
from archc.backends.eager.value import DATA, NUMBER, Value
from archc.backends.expression import Text
from archc.backends.writer import Writer

from archc.ir import layer as ir
from archc.ir.chunk import ChunkForm, final, start
from archc.ir.graph import Graph, Node
from archc.ir.value_names import cotangent

BY_KERNELS = ("kernels", "gradient_kernels", "inference_kernels")
"""The names of functions that launch kernels."""

STEPS = 16
"""Fewer tokens than these are done one by one."""


def without(graph: Graph, names: Sequence[str]) -> Graph:
    """A graph that does not give these outputs."""
    new = graph.copy()
    new.outputs = {name: id for name, id in graph.outputs.items() if name not in names}
    new.prune([node.id for node in new if isinstance(node.op, ir.Input)])
    return new


def recurrence(scope: Scope, node: Node) -> Value:
    """`o, S = memory(q, k, v, S)`."""
    two = node.op.chunked is not None
    made = ChunkedFunction(scope, node) if two else RecurrenceFunction(scope, node)
    scope.results[node.id], scope.functions[node.id] = made.call(), made
    return Value(Text("None"), (), DATA)


class ChunkedFunction(RecurrenceFunction):
    """The functions of one recurrence; the one that does the steps is a `FoldFunction`'s."""

    def __init__(self, scope: Scope, node: Node):
        title = scope.file.names.fresh(region_name(scope.layer, scope.graph, node))
        super().__init__(scope, node, f"{title}_steps")
        self.title = title
        self.steps_alone = True
        self.form: ChunkForm = node.op.chunked
        self.inputs = {name: self.arguments[name] for name in self.arguments}
        self.inputs |= {start(name): text for name, text in self.states.items()}
        self.outputs = {name: self._layout(name) for name in self.results}
        self.given = dict(self.values)
        for state in self.op.states:
            layout = tuple(axis.name for axis in state.axes)
            self.given[start(state.name)] = Value(Text(""), layout, DATA)
            self.outputs[final(state.name)] = layout
        self.results_and_ends = [plain(name) for name in self.outputs]
        self.together = False

    def call(self) -> dict[str, Value]:
        """Write the functions and the line that calls the last of them; the results by name."""
        self.scope.file.sections.append(self.text())
        if not self.tokens:
            self.body.ask(self.body.lengths[self.stream])
        self.needed = {self.name: dict(zip(*extra_arguments(self.scope, self.body), strict=True))}
        self.stepping = self.steps_in_kernel(self.needed[self.name])
        if self.stepping is not None:
            self.needed[self.stepping.name] = self.stepping.extra
        forward = self._forward(self._function(self.form.forward, "chunks", list(self.inputs)))
        backward = self._backward(self._gradient("gradient"))
        fast = self._by_kernels() if self.scope.file.by_kernels is not None and backward else None
        extra = {name: text for found in self.needed.values() for name, text in found.items()}
        self.extra = {name: extra[name] for name in sorted(extra)}
        if backward is None:
            self._choice(forward)
        elif fast is not None:
            self.scope.file.by_ops(self, (forward, backward), fast)
        else:
            both = forward, backward
            self.together = self.packed and all(map(lies_packed, both))
            Ops(self, both, both).write()
        self.name = self.title
        chunk = [self.scope.ask(self.scope.chunk)] if self.scope.chunk else []
        return self.write_call([*self.extra.values(), *chunk])

    # --- the functions of the graphs ---

    def _by_kernels(self) -> tuple[GraphFunction, GraphFunction | None]:
        """Both by kernels: of packed sequences too, if all can."""
        forward = self._function(self.form.forward, "kernels", list(self.inputs))
        backward, infer = self._gradient("gradient_kernels"), None
        if self.form.saved:
            graph = without(self.form.forward, self.form.saved)
            infer = self._function(graph, "inference_kernels", list(self.inputs))
        every = [function for function in (forward, backward, infer) if function is not None]
        for function in every:
            function.packed = self.packed and not any(each.alone for each in every)
        if backward is not None:
            forward.gaps |= _passed(backward.graph, backward.gaps, forward.graph)
        if infer is None:
            self.inference = None
            return self._forward(forward), self._backward(backward)
        made, brief = (each.filled(self._returned_by(each)) for each in (forward, infer))
        joined = forward.begins_as(infer, brief)
        self.needed[forward.name] = forward.define(self._title(forward), made)
        if joined:
            infer.extra = forward.extra
        else:
            self.needed[infer.name] = infer.define(self._title(infer), brief)
        self.inference = infer
        return forward, self._backward(backward)

    def _forward(self, function: GraphFunction) -> GraphFunction:
        """The chunked form, written."""
        outputs = self._returned_by(function)
        self.needed[function.name] = function.write(outputs, self._title(function))
        return function

    def _returned_by(self, function: GraphFunction) -> dict[str, Sequence[str]]:
        """The layouts of what a chunked form returns: results, and what is saved, if it is."""
        graph, made = self.form.forward, function.graph.outputs
        saved = {n: graph[graph.outputs[n]].type.names for n in self.form.saved if n in made}
        return {**self.outputs, **saved}

    def _title(self, function: GraphFunction) -> str:
        title = f"{self._listed()} by chunks of tokens"
        if self._returned_by(function).keys() == self.outputs.keys():
            return f"{title}."
        asked = ", if it is to `keep` that" * function.keeps
        return f"{title}, and what the gradient needs{asked}."

    def _gradient(self, kind: str) -> GraphFunction | None:
        """The function of the gradients, to be written."""
        if self.form.backward is None:
            return None
        given = dict(self.given)
        for name, layout in self.outputs.items():
            given[cotangent(name)] = Value(Text(""), layout, DATA)
        order = [*self.inputs, *self.form.saved, *map(cotangent, self.outputs)]
        return self._function(self.form.backward, kind, order, given)

    def _backward(self, function: GraphFunction | None) -> GraphFunction | None:
        """The gradients of its inputs, as far as they have one, written."""
        if function is None:
            return None
        graph = function.graph
        wanted = {
            cotangent(name): self.given[name].layout
            for name in self.inputs
            if cotangent(name) in graph.outputs and self.given[name].kind != NUMBER
        }
        title = "The gradients of what enters, from those of what comes out, by chunks of tokens."
        self.needed[function.name] = function.write(wanted, title)
        self.gradients = [plain(name) for name in wanted]
        return function

    def _function(
        self, graph: Graph, kind: str, order: list[str], given: dict[str, Value] | None = None
    ) -> GraphFunction:
        name = self.scope.file.names.fresh(f"{self.title}_{kind}")
        given = self.given if given is None else given
        if kind in BY_KERNELS:
            make, fused = self.scope.file.by_kernels, kind != "gradient_kernels"
            form = (self.scope, graph, name, given, order, self.op.stream, self.op.heads)
            made = make(*form, fused=fused)
            made.span = self.node.span
            return made
        return GraphFunction(self.scope, graph, name, given, order, self.op.stream)

    def _listed(self) -> str:
        """`o` at every token, and `S` after the last."""
        results = ", ".join(f"`{name}`" for name in self.results)
        states = ", ".join(f"`{name}`" for name in self.states)
        last = "first" if self.op.reverse else "last"
        if not results:
            return f"{states} after the {last} token,"
        return f"{results} at every token, and {states} after the {last},"

    # --- the choice ---

    def _choice(self, forward: GraphFunction) -> None:
        """The function that takes steps for few tokens and chunks for many, where autograd finds
        the gradient."""
        writer, size = Writer(), self.constants()
        every = [*self.inputs.values(), *self.extra]
        borders = ["cu_seqlens=None"] * self.packed
        writer.line("@without_autocast")
        writer.call(f"def {self.title}(", [*every, f"chunk={size}", *borders], "):")
        writer.depth += 1
        self.document(writer)
        length, real = self.length_text(), self.real_arguments()
        if self.packed:
            self.one_by_one(writer, self.title, [*every, "chunk"])
        with writer.block(f"if chunk is None or {length} < STEPS:"):
            self.write_steps(writer, list(self.inputs.values()), list(self.needed[self.name]))
        self._cast(writer, real)
        writer.line(f"chunk = min(chunk, max({length}, 1))")
        wanted = list(forward.inputs)
        given = [*(self.inputs[name] for name in wanted), *self._own_extra(forward.name)]
        made, ends = [plain(name) for name in self.results], [*self.states.values()]
        if self.in_runs(wanted):
            made = self.write_runs(writer, forward.name, given)
        else:
            ends = self.results_and_ends[len(made) :]
            self.write_run(writer, forward.name, [*made, *ends], given)
        kept = map(self._returned, self.results, made, [real] * len(made))
        writer.line(f"return {', '.join([*kept, *ends])}")
        self.scope.file.sections.append(writer.text())

    def constants(self) -> str:
        """The name of the length of a chunk, in the head of the file."""
        self.scope.file.constant("STEPS", STEPS)
        return self.scope.file.constant("CHUNK", self.scope.chunk_size)

    def length_text(self) -> str:
        """The number of tokens, as text."""
        if not self.tokens:
            return self.body.lengths[self.stream]
        place = self.values[self.tokens[0]].layout.index(self.stream)
        return f"{self.arguments[self.tokens[0]]}.shape[{place}]"

    def write_run(
        self, writer: Writer, chunks: str, made: list[str], given: list[str], op: bool = False
    ) -> None:
        """The call for all chunks; an op of torch gives one result itself, a function a tuple."""
        left = ", ".join(made) + (", *_" if self.form.saved else "")
        left += "," * (left == made[0] and not op)
        writer.call(f"{left} = {chunks}(", [*given, "chunk"], ")")

    def in_runs(self, wanted: list[str]) -> bool:
        """Whether tokens may be done in runs: each value has them in one place, and none asks which
        token it is."""
        graphs = (self.form.forward, self.form.backward)
        nodes = [node for graph in graphs if graph is not None for node in graph]
        asks = any(isinstance(n.op, ir.Position) and n.op.axis.name == self.stream for n in nodes)
        along = self._along(wanted)
        layouts = [*(self.values[name].layout for name in along), *map(self._layout, self.results)]
        return bool(along) and not asks and all(x[1:2] == (self.stream,) for x in layouts)

    def _along(self, wanted: list[str]) -> list[str]:
        """The arguments that run along the tokens."""
        return [n for n in wanted if n in self.values and self.stream in self.values[n].layout]

    def write_runs(
        self, writer: Writer, chunks: str, given: list[str], runs: str = "runs_of_chunks",
        joined: str = "torch.cat({}, 1)", op: bool = False,
    ) -> list[str]:  # fmt: skip
        """The loop over runs of chunks, from the state that the run before it left; the results."""
        along = [self.inputs[name] for name in self._along(list(self.inputs))]
        parts, others = [x for x in along if x in given], {*given} - {*along}
        made = {name: plain(name) + "_" * (plain(name) in others) for name in self.results}
        lists = {name: f"{each}_all" for name, each in made.items()}
        for each in lists.values():
            writer.line(f"{each} = []")
        listed, reverse = ", ".join(parts), ", reverse=True" if self.op.reverse else ""
        runs = f"{runs}([{listed}], chunk{reverse})"
        with writer.block(f"for {listed}{',' * (len(parts) == 1)} in {runs}:"):
            self.write_run(writer, chunks, [*made.values(), *self.states.values()], given, op)
            for name, each in made.items():
                writer.line(f"{lists[name]}.append({each})")
        order = "[::-1]" if self.op.reverse else ""
        return [joined.format(f"{each}{order}") for each in lists.values()]

    def document(self, writer: Writer) -> None:
        title = f"{self._listed()} by chunks of `chunk` tokens, or token by token where"
        title += " it is None or tokens are few."
        writer.docstring([title, *self._doc()[1:]])

    def _own_extra(self, name: str) -> list[str]:
        return list(self.needed[name])

    def _dtype(self, name: str) -> str:
        return self.op.body[self.op.body.outputs[name]].type.dtype


def _passed(reader: Graph, ids: Collection[int], writer: Graph) -> frozenset[int]:
    """The values of one graph that others of another graph are: its outputs, by name."""
    names = {reader[id].op.name for id in ids if isinstance(reader[id].op, ir.Input)}
    return frozenset(id for name, id in writer.outputs.items() if name in names)
