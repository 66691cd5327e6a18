"""Names of values in functions that launch kernels."""

from __future__ import annotations

from archc.backends.writer import identifier

FIRST = ("p", "i", "in", "B", "packed")
"""The first part of names of indices, masks and blocks in kernels: `p_H`, `i_K`, `in_K`, `B_K`."""


def pointer(name: str) -> str:
    """The name of a value in functions: `S_0` for `S[0]`. Its strides are no names of indices."""
    text = identifier(name.rstrip("]").replace("[", "_"))
    return f"{text}_" if text.rstrip("_") in FIRST else text
