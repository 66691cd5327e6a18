"""Lines that make tensors contiguous, as kernels read them, whose arguments are no strides."""

from __future__ import annotations

from collections.abc import Sequence

from archc.backends.eager.scope import Scope
from archc.backends.expression import Text
from archc.backends.index import aligned
from archc.backends.writer import Writer

from archc.ir.graph import Type


def dense(writer: Writer, names: Sequence[str]) -> None:
    """The line that copies tensors of these names which are not contiguous."""
    listed = ", ".join(names)
    if len(names) > 1:
        writer.call(f"{listed} = contiguous(", [*names], ")")
    elif names:
        writer.line(f"{listed} = {listed}.contiguous()")


def laid_out(body: Scope, value: Text, layout: Sequence[str], type: Type) -> str:
    """A contiguous tensor in the order of a type, of one whose dims are `layout`."""
    seen = aligned(value, layout, type.names).text
    if {*layout} != {*type.names}:
        shape = ", ".join(body.ask(body.length(axis).text) for axis in type.axes)
        seen = f"{seen}.expand({shape})"
    return f"{seen}.contiguous()"
