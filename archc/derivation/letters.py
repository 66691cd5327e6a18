"""Letters for what a derivation names itself, none of which the recurrence uses."""

from __future__ import annotations

from archc.derivation.maths import Math, Name, Row, named
from archc.dims import in_words
from archc.verify.study import Study


class Letters:
    """The letters that are free in one recurrence."""

    def __init__(self, study: Study) -> None:
        body, states = study.recurrence.body, study.recurrence.states
        names = [each.name for each in (*body, *states) if each.name]
        axes = [axis for node in body for axis in node.type.axes]
        names += sorted({in_words(symbol) for axis in axes for symbol in axis.size.free_symbols})
        self.taken = {found.text for name in names for found in _names(named(name))}

    def of(self, wanted: str) -> str:
        """The first of some letters that is free, `wanted` if that is."""
        choices = wanted + OTHERS.get(wanted, "")
        return next((letter for letter in choices if letter not in self.taken), wanted + "′")


OTHERS = {
    "A": "MNX", "B": "RNX", "U": "PZ", "W": "QZ", "Y": "ZP", "y": "zpe", "x": "aeh", "w": "hfd",
    "c": "fed", "u": "ahl", "b": "lmn", "q": "pzs", "r": "zps", "γ": "ρλμ", "δ": "ρλμ", "Γ": "ΠΛ",
    "Δ": "ΠΛ", "g": "λε", "C": "LN", "P": "RF", "Q": "TG",
}  # fmt: skip
"""Substitutes for a letter that the recurrence uses for another value."""


def _names(math: Math) -> list[Name]:
    """The names in a name that may be a logarithm."""
    parts = math.parts if isinstance(math, Row) else (math,)
    return [part for part in parts if isinstance(part, Name)]
