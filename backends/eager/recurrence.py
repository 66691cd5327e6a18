"""A recurrence becomes a function of its own, a loop over the tokens, and a line that calls it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from archc.backends.eager import carry
from archc.backends.eager.naming import region_name
from archc.backends.eager.region import (
    argument_list,
    extra_arguments,
    graph_scope,
    in_spec_order,
    reads_last,
    wanted_results,
)
from archc.backends.eager.scope import Scope, write_sizes
from archc.backends.eager.value import BOOL, DATA, INT, KIND_OF, NUMBER, TOTAL, Value
from archc.backends.expression import ATOM, Text
from archc.backends.index import aligned
from archc.backends.writer import COLUMNS, INDENT, Names, Writer, identifier, quoted, rooms_for

from archc.ir import layer as ir
from archc.ir.chunk import CHUNK
from archc.ir.graph import Node
from archc.ir.running_sums import running_sums


class RecurrenceFunction:
    """The function of one recurrence: its arguments are the captures, then the states."""

    def __init__(self, scope: Scope, node: Node, name: str = ""):
        self.scope, self.node, self.op = scope, node, node.op
        self.stream = node.op.stream.name
        operands = ir.captured(node)
        captures = in_spec_order(scope, node, node.op.captures)
        self.values = {name: scope.value(operands[name]) for name in captures}
        self.tokens = [name for name, value in self.values.items() if self.stream in value.layout]
        self.states = {state.name: identifier(state.name) for state in node.op.states}
        free = Names({*self.states.values()})  # a state may be called as what a scan captures
        self.arguments = {name: free.fresh(name) for name in captures}
        self.results = wanted_results(scope, node)
        name = name or scope.region or region_name(scope.layer, scope.graph, node)
        self.title = self.name = scope.file.names.fresh(name)
        types = {name: scope.graph[operands[name]].type for name in captures}
        axes = {n: [types[n].axis(axis) for axis in v.layout] for n, v in self.values.items()}
        axes |= {state.name: state.axes for state in node.op.states}
        state = next(iter(self.states.values()))
        self.body = graph_scope(scope, node.op.body, state, axes, self.stream)
        self.body.dtype = f"{state}.dtype"
        self.letter = "t" if node.op.stream.name in scope.flow else self.stream
        self.packed = bool(scope.cu_seqlens and self.tokens and not scope.region)
        self.steps_alone = False
        self._enter()

    def _enter(self) -> None:
        """The values of the body's inputs: captures at one token, states before it."""
        before = {state.before: state for state in self.op.states}
        for inner in self.op.body:
            if not isinstance(inner.op, ir.Input):
                continue
            name = inner.op.name
            if name in before:
                layout = tuple(axis.name for axis in before[name].axes)
                text = self.states[before[name].name]
                self.body.values[inner.id] = Value(Text(text), layout, DATA)
                continue
            value, text = self.values[name], self.arguments[name]
            if name in self.tokens:
                text = self.body.names.fresh(f"{text}_{self.letter}")
            layout = tuple(axis for axis in value.layout if axis != self.stream)
            kind = NUMBER if value.kind == NUMBER else KIND_OF[inner.type.dtype]
            self.body.values[inner.id] = Value(Text(text), layout, kind)

    def call(self) -> dict[str, Value]:
        """Write the function and the line that calls it; the results by name."""
        if self.scope.file.by_steps is not None and not self.scope.region:
            self.name = self.scope.file.names.fresh(f"{self.title}_steps")
        text = self.text()
        self.scope.file.sections.append(text)
        needed = dict(zip(*extra_arguments(self.scope, self.body), strict=True))
        self.stepping = self.steps_in_kernel(needed)
        if self.stepping is not None:
            needed = self._choose_steps(self.title, needed)
        return self.write_call(list(needed.values()))

    def steps_in_kernel(self, needed: Mapping[str, str]) -> Any:
        """The function whose kernel walks the tokens, if there is one: its name, and what it takes
        besides captures and states."""
        by_steps = self.scope.file.by_steps
        return by_steps(self, needed) if by_steps is not None and not self.scope.region else None

    def write_steps(self, writer: Writer, given: list[str], extra: list[str]) -> None:
        """The lines that take one token after the other: by a kernel where one may."""
        if self.stepping is not None:
            states = list(self.states.values())
            tensors = ", ".join([*self.real_arguments(), *states])
            alone = "cu_seqlens is None and " * bool(self.packed and self.stepping.in_a_graph())
            with writer.block(f"if {alone}by_steps({tensors}):"):
                if self.stepping.once is not None:
                    self.stepping.once.call(writer)
                more = [*self.stepping.extra, *rooms_for(states, self.scope.file.slots)]
                writer.call(f"return {self.stepping.name}(", [*given, *more], ")")
            self.stepping.write_training(writer)
        writer.call(f"return {self.name}(", [*given, *extra], ")")

    def _choose_steps(self, title: str, needed: Mapping[str, str]) -> dict[str, str]:
        """The function that leaves the tokens to a kernel where it may; what it takes besides."""
        writer, extra = Writer(), {**needed, **self.stepping.extra}
        given = [*self.arguments.values(), *self.states.values()]
        writer.line("@without_autocast")
        borders = ["cu_seqlens=None"] * self.packed
        writer.call(f"def {title}(", [*given, *extra, *borders], "):")
        writer.depth += 1
        first, *rest = self._doc()
        alone, either = ": a loop over", ", by kernels where they can, else by a loop over"
        writer.docstring([first.replace(alone, either), *rest])
        tensors = [a for n, a in self.arguments.items() if self.values[n].kind != NUMBER]
        self.stepping.check_tensors(writer, title, [*tensors, *self.states.values()])
        if self.packed:
            self.check_packed(writer, title)
            graph = self.stepping.in_a_graph()
            self.one_by_one(writer, title, [*given, *extra], f"not {graph}" if graph else "")
        self.write_steps(writer, given, list(needed))
        self.scope.file.sections.append(writer.text())
        self.name = title
        return extra

    def write_call(self, given: list[str]) -> dict[str, Value]:
        """The line that calls the function, `given` what it takes besides captures and states."""
        scope, outputs = self.scope, self.op.body.outputs
        before, after = carry.states(scope, self.node)
        layouts = {scope.graph[u].op.name: scope.graph[u] for u in scope.graph.users(self.node.id)}
        targets = {name: scope.names.fresh(layouts[name].name or name) for name in self.results}
        sums = self._running_sums(layouts)
        arguments = [self._given(value, bool(sums)) for value in self.values.values()]
        self.before, self.after = before, self._named_finals(after)
        self.targets, self.given = targets, given
        left = ", ".join([*targets.values(), *self.after])
        borders = [f"cu_seqlens={scope.cu_seqlens}"] * self.packed
        scope.writer.call(f"{left} = {self.name}(", [*arguments, *before, *given, *borders], ")")
        return {
            name: Value(
                Text(text),
                scope.node_layout(layouts[name]),
                TOTAL if name in sums else KIND_OF[self.op.body[outputs[name]].type.dtype],
            )
            for name, text in targets.items()
        }

    def _running_sums(self, layouts: Mapping[str, Node]) -> list[str]:
        """The real results, if one is a sum along the tokens that keeps float32: all are as wide as
        what is given."""
        if not {node.id for node in layouts.values()} & running_sums(self.scope.graph):
            return []
        outputs = self.op.body.outputs
        return [n for n in self.results if self.op.body[outputs[n]].type.dtype == "real"]

    def _given(self, value: Value, wide: bool) -> str:
        """An argument of the call; `wide`: in float32 at least."""
        if not wide or value.kind in (INT, BOOL, NUMBER):
            return value.text.text
        return f"{value.text.at(ATOM)}.to({self.scope.ask('wide')})"

    def _named_finals(self, after: list[str]) -> list[str]:
        """Names for the states after the last token, where something reads them."""
        scope, names = self.scope, []
        for state, kept in zip(self.op.states, after, strict=True):
            read = kept == "_" and reads_last(scope.graph, self.node, state.name)
            name = scope.names.fresh(f"{state.name}_last") if read else kept
            layout = tuple(axis.name for axis in state.axes)
            scope.finals[self.node.id, state.name] = Value(Text(name), layout, DATA)
            names.append(name)
        return names

    # --- the function's text ---

    def text(self) -> str:
        """The whole function."""
        body, outputs = self.body, self.op.body.outputs
        body.suffix = {outputs[name]: f"_{self.letter}" for name in (*self.states, *self.results)}
        body.statements()
        after = [self._state_after(state) for state in self.op.states]
        collected = {name: body.value(outputs[name]) for name in self.results}
        lists = {name: body.names.fresh(f"{identifier(name)}_all") for name in self.results}
        real = self.real_arguments()
        stacked = {name: self._stacked(name, lists[name]) for name in self.results}
        loop = self._loop()
        parameters, _ = extra_arguments(self.scope, body)
        writer = Writer()
        arguments = [*self.arguments.values(), *self.states.values(), *parameters]
        packed = self.packed and not self.steps_alone
        self._decorate(writer)
        writer.call(f"def {self.name}(", [*arguments, *["cu_seqlens=None"] * packed], "):")
        writer.depth += 1
        writer.docstring(self._doc())
        if packed:
            self.one_by_one(writer, self.name, arguments)
        write_sizes(writer, body)
        writer.include(body.head)
        self._cast(writer, real)
        for name in lists.values():
            writer.line(f"{name} = []")
        with writer.block(loop):
            writer.include(body.writer.lines)
            for name, value in collected.items():
                writer.line(f"{lists[name]}.append({value.text})")
            writer.line(f"{', '.join(self.states.values())} = {', '.join(after)}")
        tensors = {name: body.names.fresh(name) for name in self.results}
        for name, text in stacked.items():
            writer.line(f"{tensors[name]} = {text}")
        kept = [self._returned(name, tensors[name], real) for name in self.results]
        writer.line("return " + ", ".join([*kept, *self.states.values()]))
        return writer.text()

    def _decorate(self, writer: Writer) -> None:
        """The line that switches autocast off; of tokens it says what torch.export has to know."""
        values = self.values.items()
        along = {n: v.layout.index(self.stream) for n, v in values if n in self.tokens}
        places = tuple(self._layout(name).index(self.stream) for name in self.results)
        other = [f"{places}"] * (not {*places} <= {1})
        dims = [f"{self.arguments[name]}={dim}" for name, dim in along.items()]
        states = quoted(" ".join(self.states.values()))
        if self.letter != "t" or self.op.reverse:
            writer.line("@without_autocast")
        else:
            writer.call("@over_tokens(", [states, *other, *dims], ")")
        kernels = self.scope.file.by_steps is not None
        if kernels and self.letter == "t" and self.op.chunked is None and self.tokens:
            back = [*(other or ["()"]), "True"] if self.op.reverse else other
            writer.call("@replayed(", [states, *back, *dims], ")")

    def check_packed(self, writer: Writer, title: str) -> None:
        """The lines that refuse what cannot be borders of packed sequences."""
        with writer.block("if cu_seqlens is not None:"):
            first = self.arguments[self.tokens[0]]
            writer.line(f"check_packed({quoted(title)}, cu_seqlens, {first})")

    def one_by_one(self, writer: Writer, name: str, given: list[str], unless: str = "") -> None:
        """The lines that do packed sequences each by itself, with the function of that name."""
        tokens, states = [self.arguments[n] for n in self.tokens], [*self.states.values()]
        run = f"lambda {', '.join([*tokens, *states])}: {name}({', '.join(given)})"
        parts = [run, "cu_seqlens", f"[{', '.join(tokens)}]", f"[{', '.join(states)}]"]
        one = "[0]" if len(self.results) + len(states) == 1 else ""
        unless = f" and {unless}" if unless else ""
        with writer.block(f"if cu_seqlens is not None{unless}:"):
            writer.call("return one_by_one(", parts, f"){one}")

    def real_arguments(self) -> list[str]:
        """The captures that are tensors of reals, where they may have another dtype than states."""
        if self.scope.region:
            return []
        kinds = (INT, BOOL, NUMBER)
        return [self.arguments[n] for n, v in self.values.items() if v.kind not in kinds]

    def _doc(self) -> list[str]:
        """The results of the function, and the shapes of its arguments."""
        states = ", ".join(f"`{name}`" for name in self.states)
        results = ", ".join(f"`{name}`" for name in self.results)
        one = "token" if self.letter == "t" else "chunk"
        last = "first" if self.op.reverse else "last"
        back = ", from the last on" if self.op.reverse else ""
        title = f"{results} at every {one}, and {states} after the {last}: a loop over the {one}s"
        if not self.results:
            title = f"{states} after the {last} {one}: a loop over the {one}s"
        title += f"{back}."
        shapes = {**{self.arguments[n]: v.layout for n, v in self.values.items()}}
        shapes |= {self.states[s.name]: tuple(a.name for a in s.axes) for s in self.op.states}
        return [title, argument_list(shapes)]

    def _cast(self, writer: Writer, real: list[str]) -> None:
        """States are kept in float32 at least, and so is everything that meets them."""
        if not real:
            return
        state = next(iter(self.states.values()))
        writer.line(f"dtype = {real[0]}.dtype")
        if len(real) == 1:
            writer.line(f"{real[0]} = {real[0]}.to({state}.dtype)")
            return
        names = ", ".join(real)
        if len(f"{INDENT}x.to({state}.dtype) for x in ({names})") <= writer.room:
            writer.call(f"{names} = (", [f"x.to({state}.dtype) for x in ({names})"], ")")
            return
        for name in real:
            writer.line(f"{name} = {name}.to({state}.dtype)")

    def _loop(self) -> str:
        """The header of the loop over tokens, of which the body may read less than is captured."""
        inputs = {n.op.name: n.id for n in self.op.body if isinstance(n.op, ir.Input)}
        tokens = [name for name in self.tokens if name in inputs]
        pairs = [
            (self.body.values[inputs[n]].text.text, self.values[n].layout.index(self.stream))
            for n in tokens
        ]
        if not pairs:
            return f"for _ in range({self.body.ask(self.body.lengths[self.stream])}):"
        names = [self.arguments[n] for n in tokens]
        left = ", ".join(name for name, _ in pairs)
        back = "[::-1]" if self.op.reverse else ""
        right = [f"{n}.unbind({place}){back}" for n, (_, place) in zip(names, pairs, strict=True)]
        if len(pairs) == 1:
            return f"for {left} in {right[0]}:"
        inner = ", ".join(right)
        if len(f"for {left} in zip({inner}):") + len(INDENT) > COLUMNS and {
            p for _, p in pairs
        } == {1}:
            inner = f"*(x.unbind(1){back} for x in ({', '.join(names)}))"
        return f"for {left} in zip({inner}):"

    def _state_after(self, state: ir.State) -> str:
        """The value of a state after the token, in the state's axes."""
        value = self.body.value(self.op.body.outputs[state.name])
        names = [axis.name for axis in state.axes]
        text = value.text if value.kind == NUMBER else aligned(value.text, value.layout, names)
        if value.kind == NUMBER or set(value.layout) != set(names):
            return f"({text}) + torch.zeros_like({self.states[state.name]})"
        return text.text

    def _stacked(self, name: str, tokens: str) -> str:
        """The values of all tokens in one tensor; there may be no token, but for a chunk."""
        back = "[::-1]" if self.op.reverse else ""
        layout, type = self._layout(name), self.op.body[self.op.body.outputs[name]].type
        place = layout.index(self.stream)
        if self.op.stream.size == CHUNK:
            return f"torch.stack({tokens}{back}, {place})"
        shape = [self.body.length(type.axis(axis)).text for axis in layout if axis != self.stream]
        shape.insert(place, self.body.ask(self.body.lengths[self.stream]))
        empty = f"{next(iter(self.states.values()))}.new_zeros({', '.join(shape)})"
        return f"torch.stack({tokens}{back}, {place}) if {tokens} else {empty}"

    def _returned(self, name: str, tokens: str, real: list[str]) -> str:
        """A result in the precision of the inputs."""
        type = self.op.body[self.op.body.outputs[name]].type
        return f"{tokens}.to(dtype)" if real and type.dtype == "real" else tokens

    def _layout(self, name: str) -> tuple[str, ...]:
        graph = self.scope.graph
        user = next(u for u in graph.users(self.node.id) if graph[u].op.name == name)
        return self.scope.node_layout(graph[user])
