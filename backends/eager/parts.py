"""The common ground of the parts of one class: the layer, its arguments, its memory, and the names
of classes."""

from __future__ import annotations

from collections.abc import Sequence

from archc.backends.eager.arguments import Arguments
from archc.backends.eager.file import File, state_of
from archc.backends.eager.linear import linear_maps
from archc.backends.eager.memory import memory_of
from archc.backends.eager.scope import Emitters, Scope
from archc.backends.eager.value import DATA, Value, shape_text
from archc.backends.expression import Text
from archc.backends.writer import attribute

from archc.ir import layer as ir
from archc.ir.chunk import MOST_ROWS, power_of_2, usual_tokens
from archc.ir.plan import default_sizes


class Parts:
    """One layer on its way to a class."""

    def __init__(
        self, file: File, layer: ir.Layer, emitters: Emitters, classes: dict[int, str], root: bool
    ):
        self.file, self.layer, self.emitters = file, layer, emitters
        self.classes, self.name = classes, classes[id(layer)]
        self.state = state_of(self.name)
        self.arguments = Arguments(layer, file, root)
        self.memory = memory_of(layer)
        self.linear = linear_maps(layer) if file.linear else {}
        self.sizes = {symbol: f"self.{name}" for symbol, name in self.arguments.names.items()}

    def scope(self, like: str, sizes: dict[str, str]) -> Scope:
        """A scope over the layer's graph that knows its parameters."""
        scope = Scope(self.layer.graph, self.emitters, self.file, like, self.layer.name)
        scope.sizes, scope.home = dict(sizes), self.layer.source
        scope.needs, scope.linear = self.layer.requirements, self.linear
        scope.chunk_size = self.layer.chunk.size or self._usual_tokens()
        for node, param in self.layer.params:
            names = tuple(axis.name for axis in param.axes)
            scope.values[node] = Value(Text(f"self.{attribute(param.name)}"), names, DATA)
        return scope

    def _usual_tokens(self) -> int:
        """The tokens of a chunk that suit all recurrences of the layer."""
        recurrences = (node.op for node in self.layer.graph if isinstance(node.op, ir.Recurrence))
        forms = (op.chunked for op in recurrences if op.chunked is not None)
        sizes = default_sizes(self.layer)
        found = {usual_tokens(form, sizes) for form in forms} or {MOST_ROWS}
        return min(found) if len(found) == 1 else power_of_2(min(found))


def shape_of(names: Sequence[str]) -> str:
    """The shape comment for axes."""
    return shape_text(Value(Text(""), tuple(names), DATA))
