"""Layer IR -> layer IR: vectors of many heads that decay element by element are rows of one state.

    recurrence h[N] over d: h[t] = a * h[t-1] + ..      with a[d, N]
    -> recurrence h[d, N]

All that changes is that d is no head. Pairs of tokens would be compared in each head, where a scan
has one product for each element; and a head is a program, where a program can have a block of rows.
"""

from __future__ import annotations

from dataclasses import replace

from archc.ir import layer as ir
from archc.ir.graph import Graph, Node
from archc.ir.rewrite import rewrite
from archc.recurrence.affine.form import DIAGONAL, MATRIX, NormalForm
from archc.recurrence.affine.normalize import normal_forms


def vectors_as_rows(layer: ir.Layer) -> ir.Layer:
    """The layer, its recurrences of such vectors without heads."""

    def without_heads(graph: Graph, node: Node) -> int | None:
        """recurrence[heads](..) -> recurrence(..)"""
        op = node.op
        if not isinstance(op, ir.Recurrence) or not op.heads or not _are_vectors(op):
            return None
        rows = replace(op, heads=())
        return graph.add(rows, *node.operands) if all(map(_is_scan, normal_forms(rows))) else None

    return rewrite(layer, [without_heads])


def _are_vectors(op: ir.Recurrence) -> bool:
    """Whether states are vectors of heads, and one of them is only scaled, turned and read."""
    dims = [[a for a in state.axes if a.kind == "dim" and a.name not in op.heads]
            for state in op.states]  # fmt: skip
    found = normal_forms(op) if all(len(own) == 1 for own in dims) else ()
    return any(form.turn is not None or _is_decayed(form) for form in found)


def _is_scan(form: NormalForm) -> bool:
    """Whether each element is scanned by itself, or two as the parts of a complex number."""
    return form.kind == DIAGONAL or form.turn is not None


def _is_decayed(form: NormalForm) -> bool:
    """Whether a form is that of vectors that only decay, and are read by vectors."""
    return form.kind == MATRIX and all(
        not each.value and len(each.steps) == 1 and all(t.w == 0 for t in each.steps[0].terms)
        for each in form.forms
    )
