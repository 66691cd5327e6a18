"""Long texts in generated files."""

from __future__ import annotations

import textwrap

from archc.backends.writer import quoted


def literals(text: str, room: int) -> list[str]:
    """A long text as literals one after the other; there is room for a comma."""
    return [quoted(line) for line in textwrap.wrap(text, room - 3, drop_whitespace=False)]
