"""An emitted value: its text, the order of its dims, and what kind of number it holds."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from archc.backends.expression import Text

NUMBER, INT, BOOL, DATA, WIDE = "number", "int", "bool", "data", "wide"
"""Kinds: a Python number; tensors of integers, of truth values, of reals in the inputs' dtype,
and of reals made from positions alone, which keep at least float32 until they meet data."""

SHORT = "short"
"""The kind of reals in the inputs' dtype whose sums are in float32."""

TOTAL = "total"
"""The kind of logs of a softmax's totals and of sums along the tokens (`archc/ir/running_sums.py`):
they, and what meets them, are in float32 at least, until a product of tensors."""

PLACES = "places"
"""The kind of truth values that are given as lists: along one dim, the places that hold."""

KIND_OF = {"int": INT, "bool": BOOL, "real": DATA}
"""The kind of a tensor by the dtype of its type."""

STREAMS = {"batch": "B", "t": "T", "s": "S"}
"""How the lengths of the usual sequences are written in shape comments."""


@dataclass(frozen=True)
class Value:
    """A value in generated code."""

    text: Text
    layout: tuple[str, ...]
    kind: str

    @property
    def bound(self) -> bool:
        """Whether naming it again would only make an alias: a name or an attribute."""
        return all(part.isidentifier() for part in self.text.text.split("."))


def shape_text(value: Value) -> str:
    """`[B, T, H, K]`: the comment behind a line; "" for a single number."""
    if not value.layout or value.kind == NUMBER:
        return ""
    return "[" + ", ".join(length_name(name, value.layout) for name in value.layout) + "]"


def length_name(name: str, dims: Collection[str]) -> str:
    """The name of a sequence's length beside some dims, or of a dim itself: `B` for that of the
    batch, unless a dim is called that."""
    letter = STREAMS.get(name, name)
    return name if letter in dims else letter
