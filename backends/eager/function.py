"""A layer without parameters becomes a function: `o, state = op(q, k, v, log_alpha)`."""

from __future__ import annotations

from archc.backends.eager.arguments import is_size
from archc.backends.eager.forward import Forward
from archc.backends.eager.packed import ARGUMENT, in_one_run, new_alone, write_packed
from archc.backends.eager.parts import Parts
from archc.backends.eager.region import argument_list
from archc.backends.eager.required import told_length, write_needs
from archc.backends.eager.state import first, state_class
from archc.backends.expression import number
from archc.backends.writer import Writer, quoted

from archc.ir import layer as ir
from archc.ir.plan import default_of

CHUNKS = "`chunk`: how many tokens are done at once; None: one after the other."
WITHOUT = "`chunk` may be given as to any memory; nothing is done by chunks here."


class Function(Forward):
    """Emits the function of a layer; sizes come from the shapes of its inputs, options by name."""

    training = "training"
    continued = "state is not None"
    wanted = ""

    def __init__(self, parts: Parts, name: str):
        self.title = name
        parts.sizes = {}
        super().__init__(parts)
        scope = self.scope
        recurrences = [node.op for node in self.layer.graph if isinstance(node.op, ir.Recurrence)]
        scope.chunk = "chunk" if any(op.chunked is not None for op in recurrences) else ""
        for id, op in self.own + self.others:
            for place, axis in enumerate(op.type.axes):
                if axis.kind == "dim" and axis.size.is_Symbol:
                    size = axis.size.name
                    local = scope.sizes.get(size) or scope.names.fresh(size)
                    scope.sizes[size] = local
                    scope.sources.setdefault(local, []).append((self.names[id], place))

    def _at_once(self) -> bool:
        """Whether packed sequences are done in one run, as their states are always made."""
        return in_one_run(self.layer) and not new_alone(self.layer)

    def _like(self) -> str:
        real = [self.names[id] for id, op in self.own if op.type.dtype == "real"]
        return (real or list(self.names.values()))[0]

    def _checked_against(self) -> str:
        return self._like()

    def _checked_dtype(self, op: ir.Input, like: str) -> str:
        """Gates may well be given in a higher precision than the rest."""
        return ""

    def _checks(self, writer: Writer) -> None:
        """Refuse inputs that do not fit, and sizes that follow from others and do not."""
        super()._checks(writer)
        inputs = [(self.names[id], op) for id, op in self.layer.inputs if not op.optional]
        real = ", ".join(name for name, op in inputs if op.type.dtype == "real")
        if ", " in real and any(isinstance(node.op, ir.Attend) for node in self.layer.graph):
            writer.line(f"{real} = in_one_dtype({real})")
        writer.line(f"check_chunk({quoted(self.parts.name)}, chunk)")
        scope, title = self.scope, quoted(self.parts.name)
        self.needs = Writer(margin=4)
        write_needs(self.needs, scope, self.parts.name, self.layer.requirements)
        for id, op in self.own:
            made = [axis for axis in op.type.axes if axis.kind == "dim" and not axis.size.is_Symbol]
            sizes = [f"{quoted(a.name)}: {text}" for a in made if (text := told_length(scope, a))]
            if sizes:
                name, like = self.names[id], self._checked_against()
                given = [title, quoted(op.name), name, quoted(self._axes(op))]
                given += [f"{{{', '.join(sizes)}}}", like]
                self.needs.call("check_input(", given, ")")

    def _start(self, writer: Writer) -> None:
        writer.include(self.needs.lines)
        super()._start(writer)

    def _known_sizes(self) -> str:
        return ""

    def _header(self) -> Writer:
        """The line of the `def`: what enters, the state, and options that no shape tells."""
        scope, memory = self.scope, self.memory
        real, wide = self._kind(scope.dtype), self._kind("wide")
        batch = scope.lengths["batch"]
        scope.lengths["batch"] = self.rows if scope.cu_seqlens else batch
        self.start = [
            f"{field.name}={first(self.parts, scope, field, real, wide)}" for field in memory.fields
        ]
        scope.lengths["batch"] = batch
        scope.asked.discard(self.rows)
        known = {arg.name for arg in self.layer.args if arg.symbol is not None}
        missing = sorted((scope.asked & known) - set(scope.sources))
        options = [f"{name}{self._default(name)}" for name in missing]
        options += ["training: bool = False"] if "training" in scope.asked else []
        writer = Writer()
        state = [f"state: {self.parts.state} | None = None"]
        size = self.parts.file.constant("CHUNK", scope.chunk_size)
        state += [f"chunk: int | None = {size}", ARGUMENT]
        self.options = [option.split(":")[0] for option in options]
        every = [*self._signature(), *state, *(["*", *options] if options else [])]
        writer.call(f"def {self.title}(", every, "):")
        return writer

    def _default(self, name: str) -> str:
        """The kind of an option, and its value where the spec has a number for it."""
        arg = next(arg for arg in self.layer.args if arg.name == name)
        kind = "int" if is_size(self.layer, name) else "float"
        default = None if arg.default is None else default_of(arg)
        known = default is not None and not default.free_symbols
        return f": {kind} = {number(default, {})}" if known else f": {kind}"

    def _kind(self, dtype: str) -> str:
        return f"device={self.scope.device}, dtype={dtype}"

    def _doc(self) -> list[str]:
        made = ", ".join(f"`{name}`" for name in self.layer.graph.outputs)
        shapes = {
            name: op.type.names
            for (_, op), name in zip(self.layer.inputs, self.names.values(), strict=True)
        }
        title, *notes = self.layer.doc.split("\n")
        first = f"{title} Returns {made} and the state to continue from."
        notes = ["\n".join(notes)] if notes else []
        chunks = CHUNKS if self.scope.chunk else WITHOUT
        return [first, argument_list(shapes), chunks, self._packed_doc(), *notes]

    def _padded(self, writer: Writer) -> None:
        """Nothing: a function has packed sequences alone."""

    def _one_by_one(self, writer: Writer) -> None:
        """The lines for sequences that stand one after the other."""
        shared = [
            self.names[id] for id, op in self.layer.inputs if not {"t", "batch"} & {*op.type.names}
        ]
        names = [*shared, *filter(None, [self.scope.chunk]), *self.options]
        more = [f"{name}={name}" for name in names]
        run = (
            f"lambda **given: {self.title}({', '.join(['**given', *more])})" if more else self.title
        )
        write_packed(writer, self, run, kept=True)

    def _first_state(self, writer: Writer) -> None:
        writer.call(f"state = {self.parts.state}(", self.start, ")")

    def _return(self, writer: Writer, made: str) -> None:
        if not self.memory.refusal:
            state = self._final_state(writer)
        else:  # it cannot be continued: there is nothing that could be
            state = "None" if self.memory.fields else f"{self.parts.state}()"
        writer.line(f"return {made}, {state}")


def write_function(parts: Parts, name: str) -> list[str]:
    """Append the regions' functions, the state and the function to the file; the options that it
    takes beside tensors."""
    function = Function(parts, name)
    text = function.write().text()
    parts.file.sections += [state_class(parts).text(), text]
    return function.options
