"""The captures of a Recurrence that are decays of a matrix state: chunks add up their
logarithms."""

from __future__ import annotations

from archc.dims import free_symbols
from archc.ir import layer as ir
from archc.recurrence.affine.form import MATRIX
from archc.recurrence.affine.normalize import normal_forms


def decays(recurrence: ir.Recurrence) -> list[str]:
    """The captures that decay a matrix state: they had better enter as logarithms."""
    found: dict[str, None] = {}
    for form in normal_forms(recurrence):
        gates = [step.decay for each in form.forms for step in each.steps]
        for symbol in {s for gate in gates if form.kind == MATRIX for s in free_symbols(gate)}:
            atom = form.atoms.get(symbol)
            node = (
                recurrence.body[atom.node] if atom is not None and atom.node is not None else None
            )
            if node is not None and isinstance(node.op, ir.Input):
                found[node.op.name] = None
    return [name for name in recurrence.captures if name in found]
