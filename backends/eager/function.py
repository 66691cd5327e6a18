"""A layer without parameters becomes a function: `o, state = kda_op(q, k, v, log_alpha, beta)`."""

from __future__ import annotations

from archc.backends.eager.forward import Forward, joined
from archc.backends.eager.parts import Parts, shape_of
from archc.backends.eager.scope import write_head
from archc.backends.eager.state import first, state_class
from archc.backends.writer import Writer
from archc.ir import layer as ir


class Function(Forward):
    """Emits the function of a layer; sizes come from the shapes of its inputs, options by name."""

    training = "training"

    def __init__(self, parts: Parts, name: str):
        self.title = name
        super().__init__(parts)
        scope = self.scope
        for id, op in self.own + self.others:
            for place, axis in enumerate(op.type.axes):
                if axis.kind == "dim" and axis.size.is_Symbol:
                    size = axis.size.name
                    local = scope.sizes.get(size) or scope.names.fresh(size)
                    scope.sizes[size] = local
                    scope.sources.setdefault(local, []).append((self.names[id], place))

    def _like(self) -> str:
        real = [self.names[id] for id, op in self.own if op.type.dtype == "real"]
        return (real or list(self.names.values()))[0]

    def _checked_against(self) -> str:
        return self._like()

    def _checked_dtype(self, op: ir.Input, like: str) -> str:
        """Gates may well be given in a higher precision than the rest."""
        return ""

    def _known_sizes(self) -> str:
        return ""

    def write(self) -> Writer:
        """The function."""
        scope, memory = self.scope, self.memory
        if self.others and self.own:
            self._other_sequences()
        if any(field.kind == "pos" for field in memory.fields):
            scope.ask(scope.lengths["t"])
        start = [f"{field.name}={first(self.parts, scope, field)}" for field in memory.fields]
        scope.statements()
        made = [self._output(id) for id in self.layer.graph.outputs.values()]
        writer = Writer(margin=0)
        options = sorted(scope.asked & {a.symbol.name for a in self.layer.args if a.symbol is not None})
        options += ["training=False"] if "training" in scope.asked else []
        keywords = ["*", *options] if options else []
        writer.call(f"def {self.title}(", [*self._signature(), "state=None", *keywords], "):")
        writer.depth += 1
        writer.docstring(self._doc())
        self._checks(writer)
        self._begin(writer, start)
        write_head(writer, scope, scope.sources)
        self._first(writer, start)
        writer.include(scope.writer.lines)
        self._return(writer, joined(made))
        return writer
