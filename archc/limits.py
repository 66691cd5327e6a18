"""The budget of one compilation: how large what is made of a spec may become.

A short spec can stand for something huge: seven loops in one another for two million layers, a
value squared sixty times for a product of 2**60 factors. Everything that can grow so is counted,
and refused where it passes its limit (E0009), before it takes 10 seconds or a gigabyte. What is
counted is work, not time: the same spec gets the same answer on every machine. The bundled specs
stay below a quarter of each limit but that of dims (6 of 12), and so do real models of 64 layers.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from archc.diagnostics import ArchError, fail
from archc.source import Span

NODES = 2000
"""Most values that one graph holds: a layer, the body of a recurrence, or a form of it."""

AXES = 12
"""Most dims that a value has, batch and time among them: with 12 of 4 it has 16 million numbers."""

LAYERS = 4096
"""Most layers that a model comes to, each counted as often as it is applied."""

STATES = 16
"""Most states of one recurrence."""

MAX_MONOMIALS = 64
"""Most products that a recurrence is multiplied out into, to find its chunked form: one of more
stays a loop over the tokens, which is said."""

MAX_PRODUCTS = 1400
"""Most products that are made for this in all, of one recurrence."""

CALLS = 20_000
"""How deep Python's calls may go where each value asks for those that it is made of."""


def over_budget(what: str, span: Span | None, *helps: str) -> ArchError:
    """The diagnostic for `what` exceeds the budget, at its place."""
    return fail("E0009", f"too large to compile: {what}", span, helps=helps)


@contextmanager
def deep_calls() -> Iterator[None]:
    """Room for calls as deep as graphs within the budget need."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(max(before, CALLS))
    try:
        yield
    finally:
        sys.setrecursionlimit(before)
