"""The values that a name can stand for while a spec is elaborated, and the frames of its tensors.

A `Tensor` is a node of some graph. A *frame* is one such graph: the layer's own, or the body of a
recurrence or of an attend. A tensor of an outer frame is brought into an inner one by a capture.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import sympy

from archc.diagnostics import Refused
from archc.dims import Axis
from archc.ir.free_names import numbered
from archc.ir.graph import Graph, Type
from archc.source import Span
from archc.syntax import tree


@dataclass(frozen=True, eq=False)
class Tensor:
    """A value of the layer: a node of a frame's graph. `row` marks a transposed vector, `k.T`."""

    frame: Frame
    node: int
    row: bool = False
    origin: Span | None = None

    @property
    def type(self) -> Type:
        """Axes and dtype."""
        return self.frame.graph[self.node].type

    @property
    def axes(self) -> tuple[Axis, ...]:
        """All axes, batch and streams first."""
        return self.type.axes


@dataclass(frozen=True, eq=False)
class Identity:
    """`I`, or a scalar times it: takes its axes from the matrix it meets."""

    scale: Tensor | None = None


@dataclass(frozen=True)
class Option:
    """A settled value that is not a number: `none`, true, false, a text, or a list of numbers."""

    value: Any


@dataclass(frozen=True, eq=False)
class LayerRef:
    """A layer to call, with the sizes given so far. `called`: it is one that a call has made, with
    weights of its own; `instance`: those that it shares with its other uses (`tied.py`)."""

    decl: tree.Decl
    module: Any
    sizes: tuple[tuple[str, Any], ...] = ()
    symbols: tuple[sympy.Symbol, ...] = ()
    called: bool = False
    instance: Any = None

    def __str__(self) -> str:
        return self.decl.name


@dataclass(frozen=True)
class AbstractLayer:
    """A layer argument that nobody has given yet: it keeps the shape of its input."""

    name: str


@dataclass(frozen=True)
class FunctionRef:
    """A library function, with the axes given in brackets."""

    decl: tree.Decl
    axes: tuple[tuple[Axis, ...], ...] = ()


Value = Tensor | Identity | Option | LayerRef | AbstractLayer | FunctionRef | sympy.Expr


@dataclass(eq=False)
class Frame:
    """A graph under construction. `capture(tensor, role)` makes the node for an outer value;
    `optional`: some of its inputs may be left out."""

    graph: Graph
    parent: Frame | None = None
    capture: Callable[[Frame, Tensor, str], int] | None = None
    region: bool = False
    optional: bool = False
    captured: dict[tuple[int, str], int] = field(default_factory=dict)
    entries: list[tuple[str, str, Tensor]] = field(default_factory=list)

    def bring(self, tensor: Tensor, role: str = "reader") -> Tensor:
        """The tensor as a node of this frame; captures it through every frame in between."""
        if tensor.frame is self:
            return tensor
        if self.parent is None or self.capture is None:
            raise LookupError("a tensor of an unrelated frame")
        outer = self.parent.bring(tensor)
        key = (outer.node, role)
        if key not in self.captured:
            self.captured[key] = self.capture(self, outer, role)
        return Tensor(self, self.captured[key], tensor.row, tensor.origin)

    def enter(self, name: str, role: str, outer: Tensor) -> str:
        """Record a capture under a name that is unique in this frame."""
        unique = numbered(name, {entry[0] for entry in self.entries})
        self.entries.append((unique, role, outer))
        return unique


class Lazy:
    """A definition: computed when first asked for, once; order in the text does not matter."""

    def __init__(self, name: str, span: Span, compute: Callable[[], Value]):
        self.name, self.span, self.compute = name, span, compute
        self.value: Value | None = None
        self.state = "waiting"

    def get(self, cycle: Callable[[Lazy], Refused]) -> Value:
        """The value; `cycle` makes the error if the definition needs itself."""
        if self.state == "active":
            raise cycle(self)
        if self.state == "refused":
            raise Refused(self.name)
        if self.value is None:
            self.state = "active"
            try:
                self.value = self.compute()
            except Refused:
                self.state = "refused"
                raise
            self.state = "done"
        return self.value
