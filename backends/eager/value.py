"""What an emitted value is: its text, the order of its dims, and what kind of number it holds."""

from __future__ import annotations

from dataclasses import dataclass

from archc.backends.expression import Text

NUMBER, INT, BOOL, DATA, WIDE = "number", "int", "bool", "data", "wide"
"""Kinds: a Python number; tensors of integers, of truth values, of reals in the inputs' dtype, and of
reals made from positions alone, which keep at least float32 until they meet data."""


@dataclass(frozen=True)
class Value:
    """A value in generated code."""

    text: Text
    layout: tuple[str, ...]
    kind: str

    @property
    def bound(self) -> bool:
        """Whether naming it again would only make an alias: a name, an attribute, a literal."""
        return all(part.isidentifier() for part in self.text.text.split("."))
