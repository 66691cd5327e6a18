"""The forward of a class: checks, then the graph, one statement of the spec after the other."""

from __future__ import annotations

from archc.backends.eager.arrivals import taken_in_turn
from archc.backends.eager.joint_products import join_products
from archc.backends.eager.lifetimes import with_deletions
from archc.backends.eager.memory import Field, blocks_made, in_pages, stream_of
from archc.backends.eager.packed import (
    ARGUMENT,
    CONTINUED,
    DOC,
    MASK,
    ONE_BY_ONE,
    PADDED,
    in_one_run,
    new_alone,
    write_packed,
    write_padded,
)
from archc.backends.eager.parts import Parts
from archc.backends.eager.routed_memory import use_routes
from archc.backends.eager.scope import Scope, write_sizes
from archc.backends.eager.state import of_blocks, past_tokens
from archc.backends.eager.value import KIND_OF, Value, length_name
from archc.backends.expression import MUL, POWER, Text
from archc.backends.writer import COLUMNS, Writer, attribute, identifier, in_tuple, quoted

from archc.attention.reach import counted
from archc.dims import T_SEEN, TIME
from archc.ir import layer as ir

IN_PLACE = (
    "`state` has a slot for each sequence, of which each is of a length of its own; it is written "
    "over: what attentions keep always, states of recurrences by kernels."
)


class Forward:
    """Emits one forward."""

    training = "self.training"
    continued = "state is not None or return_state"
    wanted = "return_state"

    def __init__(self, parts: Parts):
        self.parts, self.memory, self.layer = parts, parts.memory, parts.layer
        self.own = [(id, op) for id, op in self.layer.inputs if id not in self.memory.other]
        self.others = [(id, op) for id, op in self.layer.inputs if id in self.memory.other]
        self.names = {id: identifier(op.name) for id, op in self.layer.inputs}
        rows = [id for id, op in [*self.own, *self.others] if "batch" in op.type.names]
        self.first = self.names[rows[0]] if rows else ""
        along = (self.names[id] for id, op in self.layer.inputs if "t" in op.type.names)
        self.along = next(along, "")
        self.scope = self._scope()
        if self.parts.file.by_regions is not None:
            away = {*self.memory.other, *self.memory.optional}
            self.scope.use_regions(self.parts.file.by_regions(self.scope, self.layer, away))
        use_routes(self.scope, self.layer, {*self.memory.other, *self.memory.optional})
        if self.parts.file.by_regions is not None:
            params = {id for id, _ in self.layer.params}
            join_products(self.scope, params, {*self.memory.other, *self.memory.optional})

    def _at_once(self) -> bool:
        """Whether packed sequences are done in one run."""
        return in_one_run(self.layer) and not self.parts.file.slots

    def _like(self) -> str:
        """A tensor that has the dtype and device of the data."""
        real = [self.names[id] for id, op in self.own if op.type.dtype == "real"]
        params = self._params()
        return (real or params or ["next(self.parameters())"])[0]

    def _scope(self) -> Scope:
        """The scope of the forward: inputs by name, lengths from their shapes."""
        scope = self.parts.scope(self._like(), self.parts.sizes)
        scope.memory, scope.training = self.memory, self.training
        scope.wanted = "" if self.parts.file.slots else self.wanted
        scope.cu_seqlens = "cu_seqlens" if self._at_once() else ""
        known = set(self.names.values())
        spoken = {identifier(node.name) for node in self.layer.graph if node.name}
        scope.names.taken = known | spoken | {arg.name for arg in self.layer.args}
        scope.lengths = {"batch": scope.names.fresh("B"), "t": scope.names.fresh("T")}
        streams = {id: stream_of(op.type.axes) for id, op in self.layer.inputs}
        for axis in streams.values():
            if axis is not None and axis.name not in scope.lengths:
                scope.lengths[axis.name] = scope.names.fresh(f"T_{axis.name}")
        scope.names.taken = known | set(scope.lengths.values())
        for id, op in [*self.own, *self.others]:
            for place, axis in enumerate(op.type.axes):
                if axis.kind != "dim":
                    scope.sources.setdefault(scope.lengths[axis.name], []).append(
                        (self.names[id], place)
                    )
            scope.values[id] = Value(Text(self.names[id]), op.type.names, KIND_OF[op.type.dtype])
        if self.first:
            scope.sources[scope.lengths["batch"]] = [(self.first, 0)]
        self.rows = scope.names.fresh("rows") if scope.cu_seqlens else f"{self.first}.shape[0]"
        seen = f"(pos + {scope.lengths['t']})"
        counts = any(field.kind == "pos" for field in self.memory.fields)
        scope.starts = {"t": "pos" if counts else "0"}
        if self.parts.file.slots:
            scope.each = {"t": ("own_positions", scope.lengths["t"])}
            seen = self._room()
        scope.sizes |= {str(TIME.size): seen, str(T_SEEN): seen}
        self._blocks(scope)
        return scope

    def _room(self) -> str:
        """For how many tokens of each sequence there is room in slots, where that is counted."""
        kept = (f for f in self.memory.fields if in_pages(f))
        whole = (f for f in kept if "t" in [axis.name for axis in f.axes])
        return next((f"state.{field.name}.shape[1]" for field in whole), "capacity")

    def _kept_blocks(self, scope: Scope) -> None:
        """How many blocks of tokens there is room for in slots."""
        for field in self.memory.fields:
            for axis in field.axes if in_pages(field) else ():
                if blocks_made(self.layer.graph, axis.name) is not None:
                    scope.lengths[axis.name] = f"state.{field.name}.shape[1]"

    def _blocks(self, scope: Scope) -> None:
        """Blocks and tokens read, as values outside an attention refer to them.

        Scores that an attention hands out have every block so far; otherwise a block's position is
        counted from the blocks that earlier calls completed.
        """
        if self.parts.file.slots:
            self._kept_blocks(scope)
            return
        read = {n.op.read.name for n in self.layer.graph if isinstance(n.op, ir.Attend)}
        for node in self.layer.graph:
            if isinstance(node.op, ir.Attend) and node.op.source == "t":
                scope.sizes[str(node.op.read.size)] = scope.sizes[str(TIME.size)]
            if not isinstance(node.op, ir.Window) or node.op.blocks is None:
                continue
            blocks = node.op.blocks
            exported = any({"t", blocks.name} <= set(n.type.names) for n in self.layer.graph)
            if not (exported and blocks.name in read):
                width, stride = (scope.size(s) for s in (node.op.width.size, node.op.stride))
                done = f"max(0, (pos - {width.at(MUL)}) // {stride.at(POWER)} + 1)"
                scope.starts[blocks.name] = done
                scope.lengths[blocks.name] = f"max(0, {scope.size(blocks.size)} - {done})"

    def write(self) -> Writer:
        """The method."""
        scope, optional = self.scope, self.memory.optional
        if self.others and self.own:
            self._other_sequences()
        told = not self.memory.refusal or any(counted(self.layer.graph))
        if told and any(f.kind == "pos" for f in self.memory.fields):
            scope.ask(scope.lengths["t"])
        scope.statements([node.id for node in self.layer.graph if node.id not in optional])
        outputs = [id for id in self.layer.graph.outputs.values() if id not in optional]
        texts = {id: self._output(id) for id in outputs}
        made = [texts[id] for id in outputs]
        if optional:
            self._when_given(texts)
        self.held = self._held()
        writer = self._header()
        writer.depth += 1
        writer.docstring(self._doc())
        self._checks(writer)
        self._packed(writer)
        write_sizes(writer, scope)
        self._start(writer)
        writer.include(scope.head)
        end = Writer(margin=8)
        self._return(end, "made" if optional else joined(made))
        writer.include(self._body(end.lines))
        writer.include(end.lines)
        return writer

    def _body(self, after: list[str]) -> list[str]:
        """The statements; on a GPU what has numbers for each token is let go of after its last
        reader, as the largest that there is."""
        lines, graph = self.scope.writer.lines, self.layer.graph
        if self.parts.file.by_regions is None:
            return lines
        kinds = {each: [a.kind for a in graph[each].type.axes] for each in self.scope.values}
        large = [id for id, kind in kinds.items() if {"batch", "stream", "dim"} <= {*kind}]
        names = dict.fromkeys(str(self.scope.values[id].text) for id in large)
        return with_deletions(taken_in_turn(lines, 8), after, [*names], COLUMNS - 8)

    def _header(self) -> Writer:
        """The line of the `def`."""
        writer = Writer(margin=4)
        state = [f"state: {self.parts.state} | None = None", "return_state: bool = False"]
        state += [] if self.parts.file.slots else [ARGUMENT, MASK]
        writer.call("def forward(", ["self", *self._signature(), *state], "):")
        return writer

    def _output(self, id: int) -> str:
        return self.scope.at(id, self.scope.graph[id].type.names).text

    def _when_given(self, made: dict[int, str]) -> None:
        """Outputs that depend on inputs which may be left out, among the others in their order."""
        scope, optional = self.scope, self.memory.optional
        scope.needed_by(optional)
        given = [self.names[id] for id, op in self.layer.inputs if op.optional]
        outputs = self.layer.graph.outputs.values()
        scope.writer.line(f"made = {joined([made[id] for id in outputs if id in made])}")
        outer, scope.writer = scope.writer, Writer(margin=12)
        scope.statements(optional)
        every = [made.get(id) or self._output(id) for id in outputs]
        scope.writer.line(f"made = {joined(every)}")
        inner, scope.writer = scope.writer, outer
        with outer.block(f"if {' and '.join(f'{name} is not None' for name in given)}:"):
            outer.include(inner.lines)

    def _doc(self) -> list[str]:
        """The results of a call, and how to go on."""
        graph, optional = self.layer.graph, self.memory.optional
        made = ", ".join(f"`{n}`" for n, id in graph.outputs.items() if id not in optional)
        more = self._optional_outputs()
        given = " and ".join(f"`{op.name}`" for _, op in self.layer.inputs if op.optional)
        made += f", and {more} where {given} is given" if optional else ""
        if self.parts.file.slots:
            of_each = "of one token of each sequence; with `return_state` also the state."
            return [f"{made} {of_each}", IN_PLACE]
        if self.memory.refusal:
            return [f"{made}; the whole sequence at once.", self._packed_doc(), PADDED]
        title = f"{made}; with `return_state` also the state to continue from."
        return [title, self._packed_doc(), PADDED]

    def _optional_outputs(self) -> str:
        """The outputs that inputs which may be left out are needed for."""
        outputs = self.layer.graph.outputs.items()
        return ", ".join(f"`{name}`" for name, id in outputs if id in self.memory.optional)

    def _packed_doc(self) -> str:
        if not self.scope.cu_seqlens:
            return f"{DOC} {ONE_BY_ONE}"
        return f"{DOC} {CONTINUED}" if new_alone(self.layer) else DOC

    def _packed(self, writer: Writer) -> None:
        """The lines for sequences that stand one after the other."""
        if self.parts.file.slots:
            return
        if self.scope.cu_seqlens:
            if new_alone(self.layer) and not self.memory.refusal:
                self._one_by_one(writer)
            self._padded(writer)
            with writer.block("if cu_seqlens is not None:"):
                writer.line(f"check_packed({quoted(self.parts.name)}, cu_seqlens, {self.first})")
            return
        self._one_by_one(writer)

    def _padded(self, writer: Writer) -> None:
        """The lines for a batch with padding, where packed sequences are done in one run."""
        write_padded(writer, self)

    def _one_by_one(self, writer: Writer) -> None:
        """The lines that do them one after the other."""
        run = "self.forward"
        if not self.memory.refusal:
            run = "lambda **given: self.forward(**given, return_state=True)"
        write_packed(writer, self, run, kept=False)

    def _signature(self) -> list[str]:
        """The inputs; those along other sequences may be left out once a state holds them."""
        parts, last = [], True
        for id, op in reversed(self.layer.inputs):
            may_miss = self._may_miss(id, op)
            last = last and may_miss
            kind = "Tensor | None" if may_miss else "Tensor"
            parts.append(f"{self.names[id]}: {kind}" + (" = None" if last else ""))
        return parts[::-1]

    def _may_miss(self, id: int, op: ir.Input) -> bool:
        """Whether an input may be left out: it is optional, or a state can hold its values."""
        return op.optional or (id in self.memory.other and bool(self.own))

    def _checks(self, writer: Writer) -> None:
        """Refuse inputs that do not fit, in the words of the spec."""
        title, like = quoted(self.parts.name), self._checked_against()
        writer.line(f"sizes = {{{self._known_sizes()}}}")
        beside = False
        for id, op in sorted(self.layer.inputs, key=lambda each: self._is_beside(each[1])):
            if self._is_beside(op) and not beside:
                beside = True
                rows = quoted(self._axes(op).split()[0])
                writer.line(f"sizes[{rows}] = rows_beside(cu_seqlens, {self.along})")
            name, shown = self.names[id], quoted(op.name)
            piece = {"int": "check_index", "bool": "check_index"}.get(op.type.dtype, "check_real")
            lines = [
                f'check_input({title}, {shown}, {name}, "{self._axes(op)}", sizes, {like})',
                f"{piece}({title}, {shown}, {name}{self._checked_dtype(op, like)})",
            ]
            if self._may_miss(id, op):
                with writer.block(f"if {name} is not None:"):
                    writer.include(lines)
            else:
                writer.include(lines)

    def _checked_against(self) -> str:
        """The tensor on whose device, and in whose dtype, inputs must be."""
        params = self._params()
        inputs = sorted(self.layer.inputs, key=lambda each: each[1].type.dtype != "real")
        if params or not self.parts.linear:
            first = self.names[inputs[0][0]]
            return params[0] if params else f"next(self.parameters(), {first})"
        return self.names[inputs[0][0]]  # weights may be in a dtype of a quantiser

    def _params(self) -> list[str]:
        """The layer's own parameters that are no maps of `nn.Linear`."""
        return [
            f"self.{attribute(param.name)}"
            for id, param in self.layer.params
            if id not in self.parts.linear
        ]

    def _checked_dtype(self, op: ir.Input, like: str) -> str:
        """The further argument that compares dtypes."""
        return f", {like}" if op.type.dtype == "real" else ""

    def _known_sizes(self) -> str:
        """`"d": self.d`: the sizes of inputs that the layer knows."""
        scope = self.parts.scope("", self.parts.sizes)
        axes = {axis.name: axis for _, op in self.layer.inputs for axis in op.type.axes}
        dims = [axis for axis in axes.values() if axis.kind == "dim"]
        return ", ".join(f"{quoted(axis.name)}: {scope.size(axis.size)}" for axis in dims)

    def _is_beside(self, op: ir.Input) -> bool:
        """Whether packed sequences have a row each of an input, as it is not along the tokens."""
        names = op.type.names
        packs = bool(self.along) and not self.parts.file.slots
        return packs and "t" not in names and "batch" in names[:1]

    def _axes(self, op: ir.Input) -> str:
        every = [axis for _, each in self.layer.inputs for axis in each.type.axes]
        dims = {axis.name for axis in every if axis.kind == "dim"}
        lengths = {axis.name: length_name(axis.name, dims) for axis in every if axis.kind != "dim"}
        if self._is_beside(op):
            lengths["batch"] = "rows" if "rows" not in dims else "N_rows"
        return " ".join(lengths.get(name, name) for name in op.type.names)

    def _start(self, writer: Writer) -> None:
        """The state to start from."""
        memory, name = self.memory, self.parts.name
        if memory.refusal:
            with writer.block(f"if {self.continued}:"):
                message = quoted(f"{name} cannot be continued: {memory.refusal}")
                writer.call("raise ValueError(", [message], ")")
        if memory.whole:
            self._refuse_gaps(writer)
        if not memory.fields:
            return
        if self.scope.cu_seqlens:
            rows = f"{self.first}.shape[0] if cu_seqlens is None else len(cu_seqlens) - 1"
            writer.line(f"{self.rows} = {rows}")
        if self.parts.file.slots:
            writer.line(f"check_one_token({quoted(self.parts.name)}, {self.first})")
            writer.call("check_state(", self.held, ")")
        else:
            self._from_given(writer)
        if any(field.kind == "pos" for field in memory.fields):
            writer.line("pos = state.pos")
            self._check_tables(writer)

    def _refuse_gaps(self, writer: Writer) -> None:
        """Lines that refuse a state where values look along tokens of which it keeps nothing."""
        given = [self.names[id] for id, op in self.layer.inputs if op.optional]
        told = f"{self._optional_outputs()}: made of all tokens so far, and nothing is kept of them"
        with writer.block(f"if {' and '.join(f'{x} is not None' for x in ('state', *given))}:"):
            message = quoted(f"{self.parts.name}: {told}; give no state")
            writer.call("raise ValueError(", [message], ")")

    def _check_tables(self, writer: Writer) -> None:
        """Lines that refuse more tokens than tables of positions have rows for."""
        graph, tokens = self.layer.graph, self.scope.lengths["t"]
        for node in graph if not self.parts.file.slots else ():
            if not isinstance(node.op, ir.Gather):
                continue
            table, at = (graph[operand] for operand in node.operands)
            if isinstance(table.op, ir.Param) and at.op == ir.Position(TIME):
                rows = self.scope.length(table.type.axis(node.op.axis)).text
                given = [quoted(self.parts.name), quoted(table.op.name), rows, f"pos + {tokens}"]
                given += ["cu_seqlens", self.first] if self.scope.cu_seqlens else []
                writer.call("check_positions(", given, ")")
        for name, reach in () if self.parts.file.slots else counted(graph):
            given = [quoted(self.parts.name), quoted(name), self.scope.size(reach.rows).text]
            given += [f"pos + {tokens}"]
            given += ["cu_seqlens", self.first] if self.scope.cu_seqlens else []
            ends = self.scope.by_tokens(reach.least, reach.most)
            writer.call("check_positions(", [*given, f"reach={ends}"], ")")

    def _from_given(self, writer: Writer) -> None:
        """Lines that take the state that is given, or the first."""
        with writer.block("if state is None:"):
            self._first_state(writer)
        if not self.memory.refusal:
            with writer.block("else:"):
                writer.call("check_state(", self.held, ")")

    def _held(self) -> list[str]:
        """The form of a state that is checked: the shape of each of its tensors, and which of them
        are states of recurrences, hold whole numbers, or are states of layers."""
        found, shapes = dict[str, list[str]](), list[str]()
        for field in self.memory.fields:
            kind = "layers" if field.kind.startswith("layer") else ""
            if field.kind == "pos" and self.parts.file.slots:
                shapes.append(f"{quoted(field.name)}: ({self.rows},)")
                kind = "whole"
            elif field.kind != "pos" and not kind:
                shapes.append(f"{quoted(field.name)}: {self._shape_of(field)}")
                other = field.kind == "other"
                dtype = self.layer.graph[field.node].type.dtype if other else field.dtype
                kind = "wide" if field.wide else "whole" * (dtype != "real")
                if other or field.begun:
                    found.setdefault("optional", []).append(field.name)
            if kind:
                found.setdefault(kind, []).append(field.name)
        named = [f"{kind}={quoted(' '.join(names))}" for kind, names in sorted(found.items())]
        tensors = f"{{{', '.join(shapes)}}}"
        title, like = quoted(self.parts.name), self._like()
        paged = self.parts.file.slots and any(map(in_pages, self.memory.fields))
        state = "alike_tensors(state)" if paged else "state"
        return [title, state, self.parts.state, like, tensors, *named]

    def _shape_of(self, field: Field) -> str:
        """How long the dims of a tensor in a state are, and names for numbers of tokens kept."""
        lengths = []
        for axis in field.axes:
            if axis.kind == "batch":
                lengths.append(self.rows)
            elif axis.kind == "dim":
                lengths.append(self.scope.length(axis).text)
            elif field.kind == "past" and axis.name in self.memory.flow and self._told(field):
                lengths.append(self.scope.size(past_tokens(self.parts, field)).text)
            elif field.kind == "seen" and axis.kind == "stream":
                last = "" if field.count is None else f", the last {field.count}"
                lengths.append(quoted(f"{axis.name}{last}"))
            else:
                lengths.append("None")
        return in_tuple(lengths)

    def _told(self, field: Field) -> bool:
        """Whether it is known how many tokens before the next a field has."""
        return self.parts.file.slots or not of_blocks(self.parts, field)

    def _first_state(self, writer: Writer) -> None:
        """The line that makes the state before the first token."""
        kind = f"{self.scope.device}, {self.scope.dtype}"
        writer.line(f"state = self.initial_state({self.rows}, {kind})")

    def _other_sequences(self) -> None:
        """Values made from other sequences: computed if those are given, else of the state."""
        scope, graph = self.scope, self.layer.graph
        scope.needed_by(self.memory.other)
        outer, scope.writer = scope.writer, Writer(margin=12)
        head, scope.head = scope.head, []
        needed, asked = self._needed_from_others(), {*scope.asked}
        for node in graph:
            if node.id in needed:
                scope.statement(node)
                if not scope.value(node.id).bound:
                    scope.bind(node.id)
        inner, scope.writer = scope.writer, outer
        lines, scope.head = [*scope.head, *inner.lines], head
        names = [self.names[id] for id, _ in self.others]
        told = {s for s, at in scope.sources.items() if {a for a, _ in at} <= {*names}}
        every, scope.asked = scope.asked, told & scope.asked - asked
        kept = Writer(margin=12)
        self._from_state(kept, needed)
        if lines or kept.lines:
            with outer.block(f"if {names[0]} is not None:"):
                write_sizes(outer, scope)
                outer.include(lines or ["pass"])
        scope.asked = every - scope.asked
        if kept.lines:
            with outer.block("else:"):
                outer.include(kept.lines)

    def _needed_from_others(self) -> list[int]:
        """Values made from other sequences that the rest of the layer reads."""
        graph, other = self.layer.graph, self.memory.other
        regions = ir.Recurrence | ir.Attend | ir.Call
        return [
            node.id
            for node in graph
            if node.id in other
            and not isinstance(node.op, regions)
            and any(user not in other for user in graph.users(node.id))
        ]

    def _from_state(self, writer: Writer, needed: list[int]) -> None:
        """Take from the state the values that an earlier call made of the other sequences."""
        fields = {f.node: f.name for f in self.memory.fields if f.kind == "other"}
        kept = [id for id in needed if id in fields]
        if kept:
            given = " and ".join(f"`{self.names[id]}`" for id, _ in self.others)
            text = f"{self.parts.name}: {given} may be left out only when a state is given"
            with writer.block(f"if state.{fields[kept[0]]} is None:"):
                writer.call("raise ValueError(", [quoted(text)], ")")
        for id in needed:
            name = self.scope.values[id].text.text
            if id in fields:
                self.scope.kept[fields[id]] = name
                writer.line(f"{name} = state.{fields[id]}")
            elif id not in self.names:
                writer.line(f"{name} = None")

    def _return(self, writer: Writer, made: str) -> None:
        """The outputs, and the state if it is asked for."""
        if self.memory.refusal:
            writer.line(f"return {made}")
            return
        state = self._final_state(writer)
        writer.line(f"return ({made}, {state}) if return_state else {made}")

    def _final_state(self, writer: Writer) -> str:
        """The state after the last token."""
        items = []
        for field in self.memory.fields:
            text = self.scope.kept.get(field.name) or f"state.{field.name}"
            if field.kind == "pos":
                text = f"pos + {self.scope.lengths['t']}"
            items.append(f"{field.name}={text}")
        if not items:
            return f"{self.parts.state}()"
        writer.call(f"state = {self.parts.state}(", items, ")")
        if self.scope.cu_seqlens and new_alone(self.layer):
            self._of_each(writer)
        return "state"

    def _of_each(self, writer: Writer) -> None:
        """The lines that cut the state of each of some packed sequences out of that of all."""
        seen = []
        for field in self.memory.fields:
            if field.kind == "seen":
                count = "None" if field.count is None else str(self.scope.size(field.count))
                seen.append(f"{quoted(field.name)}: ({self.scope.seen[field.node]}, {count})")
        with writer.block("if cu_seqlens is not None and return_state:"):
            given = ["state", "cu_seqlens", self.first, f"{{{', '.join(seen)}}}"]
            writer.call("state = state_of_each(", given, ")")


def joined(outputs: list[str]) -> str:
    """One output alone, several as a tuple."""
    return outputs[0] if len(outputs) == 1 else f"({', '.join(outputs)})"
