"""Dims of a length that is known."""

from __future__ import annotations

import sympy

from archc.tile.language import Dim


def dim(name: str, length: int) -> Dim:
    """A dim of a length that is known."""
    return Dim(name, sympy.Integer(length))
