"""The functions of one op of torch: what it does, and what its results are like.

What is real has one of these dtypes, whichever way it is done:

    data     that of what enters: results at every token
    wide     float32, or float64 where the states are: states, and what the gradient needs
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

import sympy
from archc.backends.eager.arguments import symbols_in
from archc.backends.eager.graph_function import GraphFunction, plain
from archc.backends.eager.required import conditions, told_length
from archc.backends.eager.scope import Scope, write_sizes
from archc.backends.eager.shape_checks import shapes_of, write_check
from archc.backends.lines import words
from archc.backends.writer import Writer, in_tuple, quoted

from archc.dims import Axis
from archc.ir.chunk import CHUNK, final, is_end, start
from archc.ir.graph import Type
from archc.ir.value_names import cotangent, primal

if TYPE_CHECKING:
    from archc.backends.eager.chunked import ChunkedFunction


TORCH = {"int": "torch.int64", "bool": "torch.bool"}
"""The dtypes of results that are not real."""


class Op(GraphFunction):
    """One op under construction: `eager` does it in PyTorch, `fast` is what may do it instead."""

    wrapper = "as_op"

    def __init__(
        self, owner: ChunkedFunction, name: str, eager: GraphFunction, fast: GraphFunction
    ) -> None:
        order = list(fast.inputs)
        super().__init__(fast.scope, fast.graph, name, fast.given, order, fast.stream)
        self.owner, self.eager, self.fast = owner, eager, fast
        self.needs: list[str] = []
        self.tensors = [a for n, a in self.arguments.items() if not self.is_number(n)]
        self.layouts = {a: tuple(self.layout(n)) for n, a in self.arguments.items()}
        real, every = self.reals.items(), [*self.reals.values()]
        self.decisive = [a for n, a in real if n not in owner.form.saved]
        self.data = [a for n, a in real if not is_end(n)] or every
        self.state = ([a for n, a in real if is_end(n)] or every)[0]
        self.kept = {self.arguments[n]: n for n in owner.form.saved if n in self.inputs}
        self.body.sources = self._told_by(self.body)
        self.packed, self.sequences = self._takes_packed(), self.body.names.fresh("sequences")
        self.every = [*self.arguments.values(), *owner.extra, *self.options]
        self.results = {n: each for n, each in fast.returned.items() if n not in fast.absent}

    def _takes_packed(self) -> bool:
        """Whether it is given packed sequences as they are."""
        return self.owner.together

    def _told_by(self, body: Scope) -> dict[str, list[tuple[str, int]]]:
        """Which shapes tell a length: none of what is kept for the gradient, and none a length that
        is an argument."""
        return {
            name: [each for each in places if each[0] not in self.kept]
            for name, places in body.sources.items()
            if name not in self.owner.extra
        }

    def _append(self, writer: Writer) -> None:
        self.scope.file.sections.append(writer.text())

    def is_real(self, result: str) -> bool:
        """Whether a result holds real numbers."""
        return self.graph[self.graph.outputs[result]].type.dtype == "real"

    # --- dtypes ---

    def _widths(self, used: Collection[str]) -> list[str]:
        """The lines that name dtypes."""
        lines = {
            "data": f"data = {self.data[0]}.dtype",
            "wide": f"wide = torch.promote_types({self.state}.dtype, torch.float32)",
        }
        return [line for name, line in lines.items() if name in used]

    def _dtype(self, name: str, eager: bool = False) -> str:
        """The dtype of a result; `eager`: where PyTorch does it."""
        if not self.is_real(name):
            return TORCH[self.graph[self.graph.outputs[name]].type.dtype]
        value = primal(name)
        if value is not None and value in self.arguments and not is_end(value):
            return f"{self.arguments[value]}.dtype"
        along = self.stream.name in self.graph[self.graph.outputs[name]].type.names
        return "data" if along and name in self.owner.outputs else "wide"

    # --- what its results are like ---

    def fake(self) -> str:
        """The function that tells the shapes and dtypes of the results; its name."""
        name = f"{self.name}_fake"
        made = [self._output(each, layout) for each, layout in self.results.items()]
        used = set(words(made))
        head = [*self._head(used), *self._widths(used)]
        doc = f"What the results of `{self.name}` are like, without their values."
        writer = Writer().define(name, self.every, [doc])
        write_sizes(writer, self.body)
        writer.include(head)
        writer.gives(made)
        self._append(writer)
        return name

    def alike(self) -> list[str]:
        """The inputs that have the shapes and dtypes of the results; empty if some result is like
        none of them."""
        own, found = {argument: n for n, argument in self.arguments.items()}, list[str]()
        for name in self.results:
            like, dtype = self._like(name), self._dtype(name)
            after = like and any(own[like] == cotangent(final(s)) for s in self.owner.states)
            if not like or dtype not in (f"{like}.dtype", *["wide"] * bool(after)):
                return []
            found.append(own[like])
        return found

    def _output(self, name: str, layout: Sequence[str]) -> str:
        like = self._like(name)
        if like:
            dtype = self._dtype(name)
            kind = "" if dtype == f"{like}.dtype" else f", dtype={dtype}"
            return f"{like}.new_empty({like}.shape{kind})"
        type = self.graph[self.graph.outputs[name]].type
        streams = any(axis.kind == "stream" for axis in type.axes)
        lengths = [self._length(type.axis(axis), streams) for axis in layout]
        if name in self.owner.form.saved:
            lengths = [" * ".join(lengths)]
        return f"{self.tensors[0]}.new_empty({in_tuple(lengths)}, dtype={self._dtype(name)})"

    def _like(self, name: str) -> str:
        """The argument that has the shape of a gradient: its value, or of a state before the tokens
        the gradient of that after them."""
        value = primal(name)
        if value is None:
            return ""
        after = next((cotangent(final(s)) for s in self.owner.states if value == start(s)), "")
        found = self.arguments.get(value) or self.arguments.get(after, "")
        return found if found in self.tensors else ""

    def _length(self, axis: Axis, streams: bool = True) -> str:
        if self.packed and axis.kind == "batch" and not streams:
            return self.sequences
        return "chunk" if axis.size == CHUNK else self.body.length(axis).text

    def _head(self, used: Collection[str]) -> list[str]:
        """The lines that count the chunks, and packed sequences."""
        lines, used = super()._head(used), set(used)
        counts = [name for name in self.counts if name in used]
        if not self.packed or not (counts or self.sequences in used):
            return lines
        batch = self.body.ask(self.body.lengths["batch"])
        if not counts:
            rows = f"{batch} if cu_seqlens is None else cu_seqlens.shape[0] - 1"
            return [f"{self.sequences} = {rows}"]
        tokens = self.body.ask(self.body.lengths[self.stream.name])
        rows = f"rows_and_chunks({batch}, {tokens}, cu_seqlens, chunk)"
        names = f"{self.sequences if self.sequences in used else '_'}, {counts[0]}"
        return [f"{names} = {rows}", *(f"{name} = {counts[0]}" for name in counts[1:])]

    # --- what it does ---

    def shapes(self) -> str:
        """The shapes that its arguments must have, before a kernel reads what is not there; their
        name."""
        title = f"{self.owner.title}_shapes".upper()
        body, name = self._body_again(), self.scope.file.names.fresh(title)
        axes = {
            argument: [self.inputs[input].type.axis(each) for each in self.layout(input)]
            for input, argument in self.arguments.items() if argument in self.tensors
        }  # fmt: skip

        def known(argument: str, axis: Axis, streams: bool) -> str:
            length = told_length(body, axis)
            counted = axis.kind == "batch" and self.packed and not streams
            return f"{length} sequences" if counted else length

        found, writer = shapes_of(axes, known, conditions(body, self.scope.needs)), Writer()
        found.write(writer, f"{name} = ", "")
        self.order = found.order
        self.scope.file.sections.append(writer.text())
        return name

    def refuse(self, writer: Writer, shapes: str, names: Mapping[str, str] | None = None) -> None:
        """The line that refuses shapes that do not fit; `names`: how its tensors are called
        there."""
        known = {a: a if names is None else names[n] for n, a in self.arguments.items()}
        tensors, borders = [known[each] for each in self.order], ["cu_seqlens"] * self.packed
        write_check(writer, self.owner.title, shapes, tensors, *borders)

    def check_tensors(self, writer: Writer, names: Mapping[str, str]) -> None:
        """The line that refuses what is no tensor; `names`: how its inputs are called there."""
        tensors = [names[n] for n in self.arguments if not self.is_number(n)]
        given = [quoted(self.owner.title), quoted(" ".join(tensors)), *tensors]
        writer.call("check_tensors(", given, ")")

    def _body_again(self) -> Scope:
        """A scope that nothing is asked of yet."""
        given = self.scope, self.graph, self.name, self.given, list(self.inputs), self.stream
        body = GraphFunction(*given).body
        body.sources = self._told_by(body)
        return body

    def function(self, shapes: str = "", brief: Op | None = None) -> str:
        """The function that does it; its name. `shapes`: those that are looked at first; `brief`:
        the op that keeps nothing for a gradient, which the same function does."""
        keep = ["keep=True"] * (brief is not None)
        writer = Writer().define(self.name, [*self.every, *keep], [self.done()], self.wrapper)
        if shapes:
            self.refuse(writer, shapes)
        if self.kept:
            self._in_shape(writer)
        self._by_kernels(writer, brief)
        writer.call("check_together(", [quoted(self.owner.title), *self.decisive], ")")
        dtypes = [self._dtype(name, eager=True) for name in self.results]
        writer.include(self._widths({"wide", *dtypes}))
        given = [*self.arguments.values()]
        writer.call("given = (", given, ",)" if len(given) == 1 else ")")
        self._in_pytorch(writer, brief)
        self._settle(writer, dtypes, brief)
        self._append(writer)
        return self.name

    def _around(self) -> tuple[str, str]:
        """What stands around results that are returned: what is saved is flat, one alone no
        tuple."""
        saved = len(set(self.owner.form.saved) & set(self.results))
        return (f"flat({saved}, ", ")") if saved else ("", "[0]" * (len(self.results) == 1))

    def _settle(self, writer: Writer, dtypes: list[str], brief: Op | None) -> None:
        """Lines that return what PyTorch made."""
        before, after = self._around()
        made = "made" if len(self.eager.returned) == len(self.results) else "made[:{}]"
        made = made.format(len(self.results))
        if brief is None:
            writer.call(f"return {before}settled(", [made, "given", *dtypes], f"){after}")
            return
        every = f"*({', '.join(dtypes)})[:count]"
        writer.call("made = settled(", ["made[:count]", "given", every], ")")
        alone = "[0]" if len(brief.results) == 1 else ""
        writer.line(f"return {before}made{after} if keep else made{alone}")

    def done(self) -> str:
        """A sentence on what computes the op."""
        return f"`{self.eager.name}`, as an op of torch."

    def _by_kernels(self, writer: Writer, brief: Op | None) -> None:
        """Lines that leave it to kernels, where there are some."""

    def _in_shape(self, writer: Writer) -> None:
        """Lines that give what is kept its shape again."""
        body = self._body_again()
        self.body, own = body, self.body
        lines = []
        for argument, name in self.kept.items():
            axes = self.inputs[name].type.axes
            streams = any(axis.kind == "stream" for axis in axes)
            shape = ", ".join(self._length(axis, streams) for axis in axes)
            lines.append(f"{argument} = {argument}.view({shape})")
        head = self._head(set(words(lines)))
        body.asked.discard("chunk")
        write_sizes(writer, body)
        writer.include([*head, *lines])
        self.body = own

    def _in_pytorch(self, writer: Writer, brief: Op | None) -> None:
        """Lines that do it in PyTorch: packed sequences each by itself."""
        rest = [*self.eager.extra, "chunk"]
        run = self._present(self.eager)
        if brief is not None:
            writer.line(f"count = {len(self.results)} if keep else {len(brief.results)}")
        if not self.packed:
            writer.call(f"made = {run}(", ["*in_dtype(wide, given)", *rest], ")")
            return
        kinds = "".join(kind_of(node.type, self.layout(n)) for n, node in self.inputs.items())
        made = quoted("".join(self._made_kind(name) for name in self.results))
        made += "[:count]" * (brief is not None)
        given = [run, "given", in_tuple(rest), "wide", "cu_seqlens", quoted(kinds), made]
        writer.call("made = in_chunks(", given, ")")

    def _made_kind(self, name: str) -> str:
        type = self.graph[self.graph.outputs[name]].type
        return kind_of(type, self.results[name])

    def _present(self, function: GraphFunction) -> str:
        """A function without the gradients that it has none of."""
        assert function.absent == self.fast.absent, f"{function.name}: other gradients are 0"
        return f"present({function.name})" if function.absent else function.name

    def schema(self, made: Sequence[str] = (), named: Mapping[str, str] | None = None) -> str:
        """The types of its arguments and results; `named`: how inputs are called there."""
        results = ", ".join(made or map(plain, self.results))
        return f"({arguments_of(self, self.every, named)}) -> ({results})"


def kind_of(type: Type, layout: Sequence[str]) -> str:
    """A letter for what runs along the tokens, or the chunks, has a row for each sequence, or is of
    all together."""
    streams = [axis for axis in type.axes if axis.kind == "stream"]
    if not any(axis.kind == "batch" for axis in type.axes):
        return "-"
    if not streams:
        return "s"
    assert layout.index(streams[0].name) == 1, f"tokens in another place: {layout}"
    return "n" if streams[0].size.has(CHUNK) else "t"


def lies_packed(function: GraphFunction) -> bool:
    """Whether packed sequences can be cut out of all that a function takes and gives."""
    graph, tokens = function.graph, function.stream.size
    counts = {
        a.size for n in graph for a in n.type.axes if a.size.has(CHUNK) and a.kind == "stream"
    }
    found = [(node.type, function.layout(name)) for name, node in function.inputs.items()]
    found += [(graph[graph.outputs[n]].type, layout) for n, layout in function.returned.items()]
    for type, layout in found:
        streams = [axis.name for axis in type.axes if axis.kind == "stream"]
        if streams and (layout[0] != "batch" or layout[1:2] != (streams[0],)):
            return False
    return counts <= {sympy.ceiling(tokens / CHUNK)}


OPTIONS = {"chunk": "int", "training": "bool", "cu_seqlens": "Tensor?"}


def arguments_of(
    function: GraphFunction, every: Sequence[str], called: Mapping[str, str] | None = None
) -> str:
    """`q, k, Scalar eps, int chunk`: arguments with their types, but for tensors; `called`: how
    inputs are, if not as the arguments of the function."""
    named = {argument: name for name, argument in function.arguments.items()}
    every_symbol = {s for node in function.graph for s in symbols_in((node.op, node.type))}
    symbols = {str(symbol): symbol for symbol in every_symbol}
    kinds = {}
    for argument in every:
        if argument in named:
            kinds[argument] = "Scalar " if function.is_number(named[argument]) else ""
        elif argument in symbols and not symbols[argument].is_integer:
            kinds[argument] = "bool " if argument == "training" else "Scalar "
        else:
            kinds[argument] = f"{OPTIONS.get(argument, 'SymInt')} "
    own = {a: called[name] if called and name in called else a for a, name in named.items()}
    return ", ".join(f"{kind}{own.get(argument, argument)}" for argument, kind in kinds.items())
