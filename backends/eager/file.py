"""The parts that the functions and classes of one generated file share."""

from __future__ import annotations

from dataclasses import dataclass, field

from archc.backends.writer import Names

TOP_LEVEL = (
    "wave fill outputs_of distance check_values check_pieces check_gradients checks speed seconds"
)
CONSTANTS = "main example TITLE SIZES SPEED_SIZES EXPECTED FORMS"
"""What a file defines beside its layers."""


@dataclass
class File:
    """A file under construction: the pieces it needs, its top-level names, and its sections in
    order."""

    pieces: set[str] = field(default_factory=set)
    names: Names = field(default_factory=lambda: Names(f"{TOP_LEVEL} {CONSTANTS}".split()))
    sections: list[str] = field(default_factory=list)
