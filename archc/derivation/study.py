"""What a layer's recurrences come down to: the facts that every view of a derivation shows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from archc.autodiff.keep import Gradient
from archc.autodiff.reverse import gradient
from archc.compile import before_chunks
from archc.ir import layer as ir
from archc.ir.graph import Graph, Node
from archc.ir.text import called_layers
from archc.numerics.interval import Interval
from archc.numerics.stated import stated
from archc.recurrence.chunked import derived_of
from archc.recurrence.derived import Derived


@dataclass(frozen=True, eq=False)
class Study:
    """One recurrence: the layer that it is in (ready for chunks), its node there, what was derived,
    and the intervals of the layer's values."""

    layer: ir.Layer
    node: Node
    derived: Derived
    known: Mapping[int, Interval]

    @property
    def fold(self) -> ir.Fold:
        """The recurrence itself."""
        return self.node.op

    @property
    def graph(self) -> Graph:
        """The graph that the recurrence is in."""
        return self.layer.graph

    @property
    def captured(self) -> dict[str, int]:
        """The node outside for each value that the recurrence captures."""
        return dict(zip(self.fold.captures, self.node.operands, strict=False))

    @cached_property
    def gradient(self) -> Gradient | None:
        """The gradient of the chunked form with respect to every real input."""
        form = self.derived.graph
        if form is None:
            return None
        inputs = [
            n.op.name for n in form if isinstance(n.op, ir.Input) and n.type.dtype == "real"
        ]
        outputs = [name for name, id in form.outputs.items() if form[id].type.dtype == "real"]
        return gradient(form, inputs, outputs)


def studies_of(layer: ir.Layer) -> Iterator[Study]:
    """The recurrences of an elaborated layer and of the layers that it calls, callers first."""
    for each in called_layers(before_chunks(layer)):
        folds = [node for node in each.graph if isinstance(node.op, ir.Fold)]
        known = stated(each) if folds else {}
        for node in folds:
            yield Study(each, node, derived_of(each.graph, node, known), known)
