"""The parts that the functions and classes of one generated file share."""

from __future__ import annotations

from dataclasses import dataclass, field

from archc.backends.writer import Names

RESERVED = (
    "torch",
    "math",
    "F",
    "Tensor",
    "nn",
    "NamedTuple",
    "Callable",
    "self",
    "state",
    "pos",
    "wide",
)
"""Names that every function of a generated file may rely on."""


@dataclass
class File:
    """A file under construction: the pieces it needs, its top-level names, and its sections in
    order."""

    pieces: set[str] = field(default_factory=set)
    names: Names = field(default_factory=lambda: Names(RESERVED))
    sections: list[str] = field(default_factory=list)
