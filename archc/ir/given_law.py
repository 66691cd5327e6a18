"""The composition law of some states of a recurrence: that of a spec, `chunk: law(..)`, or one that
archc has found.

A token's summary is a few values. `merge` makes one summary of two, the earlier and the later one,
and `apply` says what a summary does to the states:

    apply(merge(x, y), S) = apply(y, apply(x, S)),    apply(summary of token t, S[t-1]) = S[t]
"""

from __future__ import annotations

from dataclasses import dataclass

from archc.ir import layer as ir
from archc.ir.graph import Graph, Type
from archc.source import Span

DRAWS = 512
"""Random numbers that a law which is not proved is held against."""


@dataclass(frozen=True, eq=False)
class GivenLaw:
    """A law, `parts` being the names of what a summary consists of.

    The summary of one token is made by the body of the Recurrence: its outputs `in_body(part)`,
    which may lack axes that the part has. `merge`: inputs `<part>.1`, `<part>.2`, outputs the
    parts. `apply`: inputs the parts and `S[0]`, outputs `S[T]`. `text` is the rule as it was
    written, `named` its three layers, where it names them, and their headers; `proved` is whether
    the law is proved to hold (None: not looked into). One that archc has found has no text, and in
    `token` the summary of each token, made of what the Recurrence captures.
    """

    states: tuple[str, ...]
    parts: tuple[str, ...]
    merge: Graph
    apply: Graph
    text: str
    span: Span | None
    named: tuple[tuple[str, Span, Span], ...] = ()
    proved: bool | None = None
    token: Graph | None = None

    @property
    def types(self) -> dict[str, Type]:
        """The type of each part."""
        inputs = {node.op.name: node.type for node in self.apply if isinstance(node.op, ir.Input)}
        return {name: inputs[name] for name in self.parts}

    def in_body(self, part: str) -> str:
        """The output of a Recurrence's body that is a part of the summary of one token."""
        return f"{part}@{self.states[0]}"
