"""Layer -> the page of its derivation."""

from __future__ import annotations

from collections.abc import Mapping

from archc.derivation.page import Page, para
from archc.derivation.step_algebra import algebra
from archc.derivation.study import studies_of
from archc.ir import layer as ir


def page_of(layer: ir.Layer, sizes: Mapping[str, int], about: str = "", source: str = "") -> Page:
    """The derivation of an elaborated layer; `sizes` are numbers for its dims, if any are given."""
    studies = list(studies_of(layer))
    if not studies:
        return Page(layer.name, about, source, (para(NOTHING),), (algebra(layer),))
    from archc.derivation.chapters import chapter  # torch takes a second

    told = [chapter(study, sizes if study.layer.name == layer.name else {}) for study in studies]
    return Page(layer.name, about, source, (para(INTRO),), (*told, algebra(layer)))


INTRO = (
    "Everything here is derived from the spec and computed for this page: the formulas from the"
    " recurrence as it is written, the numbers by running each form in float64 beside the"
    " recurrence itself, token by token, on random values."
)
NOTHING = (
    "The layer has no recurrence: it carries no state of a fixed size from token to token. What is"
    " left to decide is in which order to multiply, and what to keep."
)
