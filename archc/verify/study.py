"""Facts about the recurrences of a layer, which every view of a derivation shows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from archc.autodiff.keep import Gradient
from archc.autodiff.reverse import gradient
from archc.compile import before_chunks
from archc.functions.interval import Interval
from archc.ir import layer as ir
from archc.ir.graph import Graph, Node
from archc.ir.plan import default_sizes
from archc.ir.text import called_layers
from archc.numerics.stated import stated
from archc.recurrence.chunk.chunked import derived_of, sizes_of
from archc.recurrence.chunk.derived import Derived, Kept
from archc.recurrence.law.composition import Law, WithoutLaw, law_of


@dataclass(frozen=True, eq=False)
class Study:
    """One recurrence: the layer that it is in (ready for chunks), its node there, what was derived,
    and the intervals of the layer's values."""

    layer: ir.Layer
    node: Node
    derived: Derived
    known: Mapping[int, Interval]

    @property
    def recurrence(self) -> ir.Recurrence:
        """The recurrence itself."""
        return self.node.op

    @property
    def graph(self) -> Graph:
        """The graph that the recurrence is in."""
        return self.layer.graph

    @property
    def captured(self) -> dict[str, int]:
        """The node outside for each value that the recurrence captures."""
        return ir.captured(self.node)

    @cached_property
    def gradient(self) -> Gradient | None:
        """The gradient of the chunked form with respect to every real input."""
        form = self.derived.graph
        if form is None:
            return None
        inputs = [n.op.name for n in form if isinstance(n.op, ir.Input) and n.type.dtype == "real"]
        outputs = [name for name, id in form.outputs.items() if form[id].type.dtype == "real"]
        return gradient(form, inputs, outputs)

    @cached_property
    def law(self) -> Law | WithoutLaw:
        """The composition law of the recurrence, or why there is none."""
        types = {name: self.graph[id].type for name, id in self.captured.items()}
        return law_of(
            self.recurrence, types, {n: self.known[id] for n, id in self.captured.items()}
        )


def studies_of(layer: ir.Layer) -> Iterator[Study]:
    """The recurrences of an elaborated layer and of the layers that it calls, callers first."""
    for each in called_layers(before_chunks(layer)):
        recurrences = [node for node in each.graph if isinstance(node.op, ir.Recurrence)]
        known = stated(each) if recurrences else {}
        for node in recurrences:
            derived = derived_of(each.graph, node, known, sizes_of(each), default_sizes(each))
            yield Study(each, node, _meant(each, node, derived), known)


def _meant(layer: ir.Layer, node: Node, derived: Derived) -> Derived:
    """The derivation, unless the layer says that its recurrences are loops."""
    if not layer.chunk.sequential or derived.graph is None:
        return derived
    states = tuple(state.name for state in node.op.states)
    loop = Kept(states, "the spec says `chunk: sequential`")
    return replace(derived, graph=None, kept=(loop,), notes=())
