"""Layer -> the page of its derivation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from archc.backends.eager.emit import emit
from archc.compile import before_chunks
from archc.derivation.page import Chapter, Checked, Page, Step, para
from archc.derivation.step_algebra import algebra
from archc.file_check import rewritten
from archc.ir import layer as ir
from archc.ir.text import called_layers
from archc.verify.study import studies_of


def page_of(layer: ir.Layer, sizes: Mapping[str, int], about: str = "", source: str = "") -> Page:
    """The derivation of an elaborated layer; `sizes` are numbers for its dims, if any are given."""
    studies, read = list(studies_of(layer)), _attends(layer)
    whole = algebra(layer)
    if not studies and not read:
        return Page(layer.name, about, source, (para(NOTHING),), (whole,))
    if studies or len(called_layers(layer)) == 1:  # of a whole model, `archc verify` has minutes
        whole = replace(whole, steps=(*whole.steps, _beside_the_spec(layer)))
    if not studies:
        return Page(layer.name, about, source, (para(ATTENDS),), (*read, whole))
    from archc.derivation.chapters import chapter  # torch takes a second

    told = [chapter(study, sizes if study.layer.name == layer.name else {}) for study in studies]
    return Page(layer.name, about, source, (para(INTRO),), (*told, *read, whole))


def _attends(layer: ir.Layer) -> tuple[Chapter, ...]:
    """The chapters of attends."""
    nodes = (node for each in called_layers(layer) for node in each.graph)
    if not any(isinstance(node.op, ir.Attend) for node in nodes):
        return ()
    from archc.derivation.step_attend import attends  # torch takes a second

    return tuple(attends(layer))


def _beside_the_spec(layer: ir.Layer) -> Step:
    """The graph that everything on the page is derived from, against the spec as it is written."""
    error = rewritten(layer, before_chunks(layer), emit)
    blocks = (para(WRITTEN), Checked("the layer after algebra", "a small instance", error, LIMIT))
    return Step("Beside the spec", blocks)


LIMIT = 1e-9
"""The largest relative error of the graph after algebra."""
WRITTEN = (
    "Algebra puts products in another order, and moves scales to where they cost less, before"
    " anything else is derived. So the layer that results is run beside the equations as they are"
    " written, op by op in float64."
)


INTRO = (
    "Everything here is derived from the spec and computed for this page: the formulas from the"
    " recurrence as it is written, the numbers by running each form in float64 beside the"
    " recurrence itself, token by token, on random values."
)
ATTENDS = (
    "The layer has no recurrence: it carries no state of a fixed size from token to token, and"
    " reads tokens again. What is left to decide is in which order to multiply, what to keep, and"
    " what of all pairs of tokens never to look at. Numbers are those of tile programs, run block"
    " by block in float64 beside the sum over all pairs."
)
NOTHING = (
    "The layer has no recurrence and reads no other token. What is left to decide is in which order"
    " to multiply."
)
